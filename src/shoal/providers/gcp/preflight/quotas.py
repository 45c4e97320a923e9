"""Compute Engine's quotas: which ones an instance counts against, how much of them is left, and
whether the minimum size of a cluster fits. Pure: records in, findings out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shoal.providers.gcp.preflight.checks import Facts, NodeTypeCheck, Record
from shoal.providers.gcp.preflight.network_checks import has_public_address
from shoal.providers.model import Finding
from shoal.providers.vm.node_type_check import candidates

# Families whose vCPUs count against the common quota; the others have their own.
_COMMON_FAMILIES = ("n1", "e2", "f1", "g1", "custom")
_SPOT = "PREEMPTIBLE_"
_ALL_CPUS, _ALL_GPUS = "CPUS_ALL_REGIONS", "GPUS_ALL_REGIONS"


@dataclass(frozen=True)
class Quota:
    """A quota: its limit, and how much of it instances of other clusters use. The region is empty
    for one of all regions together."""

    metric: str
    region: str
    limit: float
    usage: float

    @property
    def id(self) -> str:
        """Its name in the Cloud Quotas API."""
        scope = "per-project-region" if self.region else "per-project"
        return f"{self.metric.replace('_', '-')}-{scope}"


def read_quotas(region: Record, project: Record) -> dict[str, Quota]:
    """The quotas of a region and of all regions, by metric."""
    return {
        str(quota["metric"]): Quota(
            str(quota["metric"]), name, float(quota["limit"]), float(quota.get("usage") or 0)
        )
        for name, record in (("", project), (str(region.get("name", "")), region))
        for quota in record.get("quotas") or ()
    }


def demand(node_type: NodeTypeCheck, facts: Facts, quotas: Mapping[str, Quota]) -> dict[str, float]:
    """What one instance of a node type takes of each quota that exists."""
    record = facts.machine_type(node_type.instance_type)
    if record is None:
        return {}
    is_spot = node_type.market == "spot"
    family = node_type.instance_type.partition("-")[0]
    vcpus = float(record.get("guestCpus") or 0)
    own = f"{family.upper()}_CPUS"
    cpus = "CPUS" if family in _COMMON_FAMILIES or own not in quotas else own
    taken = {_for_market("CPUS" if is_spot else cpus, quotas, spot=is_spot): vcpus}
    taken[_ALL_CPUS] = vcpus
    gpus = {**_gpus_of_type(record), **node_type.accelerators}
    for name, count in gpus.items():
        metric = _for_market(_gpu_metric(name), quotas, spot=is_spot)
        taken[metric] = taken.get(metric, 0.0) + count
        taken[_ALL_GPUS] = taken.get(_ALL_GPUS, 0.0) + count
    if has_public_address(node_type.config):
        taken["IN_USE_ADDRESSES"] = 1.0
    return {metric: amount for metric, amount in taken.items() if metric in quotas and amount}


def _for_market(metric: str, quotas: Mapping[str, Quota], *, spot: bool) -> str:
    """Spot instances have quotas of their own; in a project whose limit for them is 0 they count
    against those of on-demand instances."""
    own = quotas.get(f"{_SPOT}{metric}")
    return own.metric if spot and own is not None and own.limit > 0 else metric


def _gpus_of_type(record: Record) -> dict[str, float]:
    return {
        str(entry["guestAcceleratorType"]): float(entry["guestAcceleratorCount"])
        for entry in record.get("accelerators") or ()
    }


def _gpu_metric(name: str) -> str:
    """The metric of an accelerator type: `nvidia-tesla-t4` counts as NVIDIA_T4_GPUS."""
    model = name.upper().replace("-", "_").replace("NVIDIA_TESLA_", "NVIDIA_")
    return f"{model}_GPUS"


def check_quotas(
    node_types: Sequence[NodeTypeCheck],
    facts: Facts,
    quotas: Mapping[str, Quota],
    running: Mapping[str, int],
    project: str,
) -> list[Finding]:
    """Whether the instances that `up` launches fit. `running` are those of the cluster that exist,
    by node type: the usage of the quotas includes them."""
    needed: dict[str, float] = {}
    users: dict[str, list[NodeTypeCheck]] = {}
    for node_type in node_types:
        count = max(0, node_type.min_count - running.get(node_type.name, 0))
        for metric, amount in demand(node_type, facts, quotas).items() if count else ():
            needed[metric] = needed.get(metric, 0.0) + amount * count
            users.setdefault(metric, []).append(node_type)
    return [
        _finding(quotas[metric], amount, users[metric], facts, quotas, project)
        for metric, amount in needed.items()
        if quotas[metric].usage + amount > quotas[metric].limit
    ]


def _finding(
    quota: Quota,
    needed: float,
    users: Sequence[NodeTypeCheck],
    facts: Facts,
    quotas: Mapping[str, Quota],
    project: str,
) -> Finding:
    where = f"in {quota.region}" if quota.region else "in all regions together"
    has_alternative = all(_fits_otherwise(n, quota, facts, quotas) for n in users)
    increase = (
        f"gcloud beta quotas preferences create --service compute.googleapis.com --quota-id "
        f"{quota.id} --preferred-value {quota.usage + needed:g} --project {project}"
    )
    increase += f" --dimensions region={quota.region}" if quota.region else ""
    fix, at = increase, ()  # type: tuple[str, tuple[str, ...]]
    excess = quota.usage + needed - quota.limit
    for node_type in sorted(users, key=lambda n: -n.min_workers):
        fewer = math.ceil(excess / demand(node_type, facts, quotas)[quota.metric])
        if node_type.min_workers >= fewer:
            at = ("node_types", node_type.name, "min_workers")
            fix = f"min_workers: {node_type.min_workers - fewer}, or {increase}"
            break
    return Finding(
        "warning" if has_alternative else "error",
        f"the cluster needs {needed:g} of the quota {quota.metric} {where}",
        why=f"the limit is {quota.limit:g}, and {quota.usage:g} are in use"
        + ("; a launch would fall back to the file's alternatives" if has_alternative else ""),
        fix=fix,
        at=at,
    )


def _fits_otherwise(
    node_type: NodeTypeCheck, quota: Quota, facts: Facts, quotas: Mapping[str, Quota]
) -> bool:
    """Whether a node type has an alternative that does not count against a quota."""
    others = candidates(node_type)[1:]
    uses = [
        demand(other, facts, quotas) for other in others if facts.machine_type(other.instance_type)
    ]
    if node_type.market == "spot" and node_type.on_demand_fallback and _SPOT in quota.metric:
        return True
    return any(quota.metric not in use for use in uses)
