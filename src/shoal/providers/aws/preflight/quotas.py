"""EC2's vCPU quotas: which one an instance counts against, how much of it is left, and whether the
minimum size of a cluster fits."""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Mapping, Sequence

from shoal.core.concurrency import run_all
from shoal.core.errors import ShoalError
from shoal.providers.aws import launch_request, tags
from shoal.providers.aws.aws_client import AwsClient
from shoal.providers.aws.instance_types import InstanceTypeInfo
from shoal.providers.aws.preflight.checks import NodeTypeCheck
from shoal.providers.model import Finding
from shoal.providers.vm.node_type_check import candidates

_log = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 4.0

# A family of instance types, and a market.
Quota = tuple[str, str]

_NEWER_P = re.compile("p[5-9]")

_CODES: Mapping[Quota, str] = {
    ("standard", "on-demand"): "L-1216C47A",
    ("standard", "spot"): "L-34B43A08",
    ("g", "on-demand"): "L-DB2E81BA",
    ("g", "spot"): "L-3819A6DF",
    ("p", "on-demand"): "L-417A185B",
    ("p", "spot"): "L-7212CCBC",
    ("p5", "spot"): "L-C4BD4855",
    ("inf", "on-demand"): "L-1945791B",
    ("inf", "spot"): "L-B5D1601B",
    ("trn", "on-demand"): "L-2C3B7624",
    ("trn", "spot"): "L-6B0D517C",
    ("x", "on-demand"): "L-7295265B",
    ("x", "spot"): "L-E3A00192",
    ("f", "on-demand"): "L-74FC7D96",
    ("f", "spot"): "L-88CF9481",
}


def family(instance_type: str) -> str:
    """The family of instance types that share a vCPU quota."""
    letters = re.match("[a-z]*", instance_type.lower())
    prefix = letters[0] if letters else ""
    if prefix in ("trn", "inf", "dl", "mac", "hpc"):
        return prefix
    if prefix == "vt":
        return "g"
    return prefix[:1] if prefix[:1] in ("g", "p", "x", "f") else "standard"


def quota_of(node_type: NodeTypeCheck) -> Quota:
    return _quota(node_type.instance_type, launch_request.market(node_type.config))


def _quota(instance_type: str, market: str) -> Quota:
    """On spot, the newer P types have quotas of their own."""
    newer = _NEWER_P.match(instance_type) if market == "spot" else None
    return newer[0] if newer else family(instance_type), market


def _launch_order(node_type: NodeTypeCheck) -> list[tuple[str, Quota]]:
    """The instance types that a node type may use, and the quotas they count against, in the order
    in which a launch tries them."""
    markets = [launch_request.market(node_type.config)]
    if markets == ["spot"] and node_type.on_demand_fallback:
        markets.append("on-demand")
    names = [candidate.instance_type for candidate in candidates(node_type)]
    return [(name, _quota(name, market)) for market in markets for name in names]


async def fetch_limits(aws: AwsClient, node_types: Sequence[NodeTypeCheck]) -> dict[Quota, float]:
    """The quotas that these node types count against. Quotas that cannot be read are left out: no
    launch depends on reading them."""
    limits: dict[Quota, float] = {}

    async def fetch(quota: Quota) -> None:
        try:
            code = {"ServiceCode": "ec2", "QuotaCode": _CODES[quota]}
            call = aws.call("service-quotas", "get_service_quota", **code)
            response = await asyncio.wait_for(call, _TIMEOUT_SECONDS)
            limits[quota] = float(response["Quota"]["Value"])
        except (ShoalError, KeyError, asyncio.TimeoutError) as error:
            _log.debug("could not read quota %s: %s", _CODES[quota], error or "timeout")

    quotas = {quota for node_type in node_types for _, quota in _launch_order(node_type)}
    await run_all(fetch(quota) for quota in quotas if quota in _CODES)
    return limits


async def fetch_usage(aws: AwsClient, cluster: str) -> dict[Quota, float]:
    """The vCPUs of each quota that the account uses now, without those of this cluster, which its
    minimum size includes."""
    running = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    reservations = await aws.paginate("ec2", "describe_instances", "Reservations", Filters=running)
    usage: dict[Quota, float] = {}
    for record in (r for reservation in reservations for r in reservation["Instances"]):
        if tags.as_dict(record.get("Tags")).get(tags.CLUSTER) == cluster:
            continue
        market = "spot" if record.get("InstanceLifecycle") == "spot" else "on-demand"
        cpu = record.get("CpuOptions") or {}
        vcpus = cpu.get("CoreCount", 0) * cpu.get("ThreadsPerCore", 1)
        quota = _quota(record["InstanceType"], market)
        usage[quota] = usage.get(quota, 0) + vcpus
    return usage


def check_quotas(
    node_types: Sequence[NodeTypeCheck],
    type_infos: Mapping[str, InstanceTypeInfo],
    limits: Mapping[Quota, float],
    usage: Mapping[Quota, float],
) -> list[Finding]:
    """Whether the minimum size of the cluster fits the account's quotas. Unknown quotas and types
    do not count. It is a warning, not an error, if a fallback of the file fits."""
    findings = []
    unplaced = _node_types_without_quota(node_types, type_infos, limits, usage)
    for quota, limit in limits.items():
        counted = [n for n in node_types if quota_of(n) == quota and n.instance_type in type_infos]
        needed = sum(_vcpus(type_infos, node_type) * node_type.min_count for node_type in counted)
        used = usage.get(quota, 0)
        if not counted or used + needed <= limit:
            continue
        group, market = quota
        fix, at = _fix(counted, type_infos, quota, used + needed, limit)
        is_error = any(node_type.name in unplaced for node_type in counted)
        findings.append(
            Finding(
                "error" if is_error else "warning",
                f"the cluster needs {needed:g} vCPUs of {market} {group} instances, "
                f"but the quota leaves {max(0, limit - used):g}",
                why=f"the quota is {limit:g}, and {used:g} are in use"
                + ("" if is_error else "; the rest falls back to the file's alternatives"),
                fix=fix,
                at=at,
            )
        )
    return findings


def _node_types_without_quota(
    node_types: Sequence[NodeTypeCheck],
    type_infos: Mapping[str, InstanceTypeInfo],
    limits: Mapping[Quota, float],
    usage: Mapping[Quota, float],
) -> set[str]:
    """The node types of which some instances fit no quota. Those with the fewest options go
    first."""
    left = {quota: limit - usage.get(quota, 0) for quota, limit in limits.items()}
    unplaced = set()
    for node_type in sorted(node_types, key=lambda n: len(_launch_order(n))):
        missing = node_type.min_count
        for name, quota in _launch_order(node_type):
            vcpus = type_infos[name].resources.get("CPU", 0) if name in type_infos else None
            if vcpus is None:
                continue
            if not vcpus or quota not in left:
                missing = 0
                break
            fitting = min(missing, max(0, int(left[quota] // vcpus)))
            left[quota] -= fitting * vcpus
            missing -= fitting
        if missing:
            unplaced.add(node_type.name)
    return unplaced


def _vcpus(type_infos: Mapping[str, InstanceTypeInfo], node_type: NodeTypeCheck) -> float:
    return type_infos[node_type.instance_type].resources.get("CPU", 0)


def _fix(
    node_types: Sequence[NodeTypeCheck],
    type_infos: Mapping[str, InstanceTypeInfo],
    quota: Quota,
    needed: float,
    limit: float,
) -> tuple[str, tuple[str, ...]]:
    """Fewer workers, where that is enough, or a quota increase, which takes AWS some time."""
    increase = "aws service-quotas request-service-quota-increase --service-code ec2 --quota-code "
    increase += f"{_CODES[quota]} --desired-value {needed:g}"
    for node_type in sorted(node_types, key=lambda n: -n.min_workers):
        excess = math.ceil((needed - limit) / max(1.0, _vcpus(type_infos, node_type)))
        if node_type.min_workers >= excess:
            at = ("node_types", node_type.name, "min_workers")
            return f"min_workers: {node_type.min_workers - excess}, or {increase}", at
    return increase, ()
