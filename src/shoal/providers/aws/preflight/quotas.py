"""EC2's quotas of vCPUs: which one a machine counts against, how much of it is left, and whether a
file's minimum fits."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Mapping, Sequence

from shoal.core.concurrency import run_all
from shoal.core.errors import ShoalError
from shoal.providers.aws import launch_request, tags
from shoal.providers.aws.client import AwsClient
from shoal.providers.aws.instance_types import MachineType
from shoal.providers.aws.preflight.checks import NodeTypeCheck
from shoal.providers.model import Finding

_ASK_SECONDS = 4.0

# A family of types, and a market.
Quota = tuple[str, str]

_CODES: Mapping[Quota, str] = {
    ("standard", "on-demand"): "L-1216C47A",
    ("standard", "spot"): "L-34B43A08",
    ("g", "on-demand"): "L-DB2E81BA",
    ("g", "spot"): "L-3819A6DF",
    ("p", "on-demand"): "L-417A185B",
    ("p", "spot"): "L-7212CCBC",
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
    """The group of types that share one of EC2's vCPU quotas."""
    letters = re.match("[a-z]*", instance_type.lower())
    word = letters[0] if letters else ""
    if word in ("trn", "inf", "dl", "mac", "hpc"):
        return word
    if word == "vt":
        return "g"
    return word[:1] if word[:1] in ("g", "p", "x", "f") else "standard"


def quota_of(kind: NodeTypeCheck) -> Quota:
    return family(kind.instance_type), launch_request.market(kind.config)


def _ways(kind: NodeTypeCheck) -> list[tuple[str, Quota]]:
    """The instance types that a kind's machines may have, and what they then count against, in
    the order in which they are asked for."""
    markets = [launch_request.market(kind.config)]
    if markets == ["spot"] and kind.on_demand_too:
        markets.append("on-demand")
    names = [choice.instance_type for choice in kind.choices]
    return [(name, (family(name), market)) for market in markets for name in names]


async def limits(aws: AwsClient, kinds: Sequence[NodeTypeCheck]) -> dict[Quota, float]:
    """The limits that these kinds count against. Who may not look at quotas, or cannot, learns
    nothing of them: that is not what a launch needs."""
    found: dict[Quota, float] = {}

    async def ask(quota: Quota) -> None:
        try:
            code = {"ServiceCode": "ec2", "QuotaCode": _CODES[quota]}
            asked = aws.call("service-quotas", "get_service_quota", **code)
            answer = await asyncio.wait_for(asked, _ASK_SECONDS)
            found[quota] = float(answer["Quota"]["Value"])
        except (ShoalError, KeyError, asyncio.TimeoutError):
            return

    wanted = {quota for kind in kinds for _, quota in _ways(kind)}
    await run_all(ask(quota) for quota in wanted if quota in _CODES)
    return found


async def in_use(aws: AwsClient, cluster: str) -> dict[Quota, float]:
    """How many vCPUs of each quota the account uses now, without those of this cluster: what the
    file's minimum asks for counts them."""
    alive = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    pages = await aws.pages("ec2", "describe_instances", "Reservations", Filters=alive)
    used: dict[Quota, float] = {}
    for record in (one for page in pages for one in page["Instances"]):
        if tags.as_dict(record.get("Tags")).get(tags.CLUSTER) == cluster:
            continue
        market = "spot" if record.get("InstanceLifecycle") == "spot" else "on-demand"
        cpu = record.get("CpuOptions") or {}
        vcpus = cpu.get("CoreCount", 0) * cpu.get("ThreadsPerCore", 1)
        quota = (family(record["InstanceType"]), market)
        used[quota] = used.get(quota, 0) + vcpus
    return used


def judge(
    kinds: Sequence[NodeTypeCheck],
    machines: Mapping[str, MachineType],
    limits: Mapping[Quota, float],
    used: Mapping[Quota, float],
) -> list[Finding]:
    """Whether the file's minimum fits the account's quotas. What is not known does not count, and
    what fits as something else that the file allows is no error."""
    found = []
    homeless = _without_room(kinds, machines, limits, used)
    for quota, limit in limits.items():
        ours = [k for k in kinds if quota_of(k) == quota and k.instance_type in machines]
        vcpus = sum(_vcpus(machines, kind) * kind.fewest for kind in ours)
        running = used.get(quota, 0)
        if not ours or running + vcpus <= limit:
            continue
        group, market = quota
        fix, at = _fix(ours, machines, quota, running + vcpus, limit)
        stays_out = any(kind.name in homeless for kind in ours)
        found.append(
            Finding(
                "error" if stays_out else "warning",
                f"{vcpus:g} vCPUs of {market} {group} machines are wanted, "
                f"and the quota leaves {max(0, limit - running):g}",
                why=f"the limit is {limit:g}, and {running:g} are in use"
                + ("" if stays_out else "; the rest is asked for as the file allows instead"),
                fix=fix,
                at=at,
            )
        )
    return found


def _without_room(
    kinds: Sequence[NodeTypeCheck],
    machines: Mapping[str, MachineType],
    limits: Mapping[Quota, float],
    used: Mapping[Quota, float],
) -> set[str]:
    """The kinds of which some machines fit nowhere. Those with the fewest ways go first."""
    left = {quota: limit - used.get(quota, 0) for quota, limit in limits.items()}
    found = set()
    for kind in sorted(kinds, key=lambda k: len(_ways(k))):
        missing = kind.fewest
        for name, quota in _ways(kind):
            each = machines[name].resources.get("CPU", 0) if name in machines else None
            if each is None:
                continue
            if not each or quota not in left:
                missing = 0
                break
            fit = min(missing, max(0, int(left[quota] // each)))
            left[quota] -= fit * each
            missing -= fit
        if missing:
            found.add(kind.name)
    return found


def _vcpus(machines: Mapping[str, MachineType], kind: NodeTypeCheck) -> float:
    return machines[kind.instance_type].resources.get("CPU", 0)


def _fix(
    kinds: Sequence[NodeTypeCheck],
    machines: Mapping[str, MachineType],
    quota: Quota,
    wanted: float,
    limit: float,
) -> tuple[str, tuple[str, ...]]:
    """Fewer workers, where that is enough; or a higher limit, which AWS takes its time for."""
    more = "aws service-quotas request-service-quota-increase --service-code ec2 --quota-code "
    more += f"{_CODES[quota]} --desired-value {wanted:g}"
    for kind in sorted(kinds, key=lambda k: -k.min_workers):
        too_many = math.ceil((wanted - limit) / max(1.0, _vcpus(machines, kind)))
        if kind.min_workers >= too_many:
            at = ("node_types", kind.name, "min_workers")
            return f"min_workers: {kind.min_workers - too_many}, or {more}", at
    return more, ()
