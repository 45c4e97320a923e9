"""Disks: how new ones are asked for, and what they cost while their machine is switched off, by
AWS's price list, or by a small table where that cannot be asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shoal.providers.aws.client import AwsClient
from shoal.providers.aws.pricing import Prices
from shoal.spec.cluster_spec import VolumeSpec


@dataclass(frozen=True)
class Rate:
    """US dollars a month: for a GiB, and for each operation a second and each MiB a second beyond
    what is included."""

    gib: float
    iops: float = 0.0
    free_iops: int = 0
    throughput: float = 0.0
    free_throughput: int = 0


_TABLE = "the list prices of us-east-1 in 2025"
# As AWS published them; most other regions are dearer.
_RATES = {
    "gp3": Rate(0.08, iops=0.005, free_iops=3000, throughput=0.04, free_throughput=125),
    "gp2": Rate(0.10),
    "io1": Rate(0.125, iops=0.065),
    "io2": Rate(0.125, iops=0.065),
    "st1": Rate(0.045),
    "sc1": Rate(0.015),
    "standard": Rate(0.05),
}
# A kind that came later is taken for the usual one.
_OTHER = _RATES["gp3"]


def mappings(volumes: Iterable[VolumeSpec]) -> list[dict[str, Any]]:
    """Those of these volumes that come with a machine, as RunInstances is asked for them."""
    return [
        {
            "DeviceName": volume.device,
            "Ebs": {
                "VolumeSize": volume.size,
                "VolumeType": volume.type or "gp3",
                "DeleteOnTermination": not volume.keep,
                **({"Iops": volume.iops} if volume.iops else {}),
                **({"Throughput": volume.throughput} if volume.throughput else {}),
            },
        }
        for volume in volumes
        if volume.size
    ]


def per_month(volume: Mapping[str, Any], said: Mapping[str, float] | None = None) -> float:
    """US dollars a month for one volume of a `DescribeVolumes` answer. `said` is what AWS says of
    its kind."""
    rate = _RATES.get(volume.get("VolumeType", ""), _OTHER)
    if said:
        units = {"iops": rate.iops, "throughput": rate.throughput, **said}
        rate = replace(rate, gib=units["gib"], iops=units["iops"], throughput=units["throughput"])
    iops = max(0, (volume.get("Iops") or 0) - rate.free_iops)
    throughput = max(0, (volume.get("Throughput") or 0) - rate.free_throughput)
    return float(volume["Size"] * rate.gib + iops * rate.iops + throughput * rate.throughput)


async def still_cost(aws: AwsClient, prices: Prices, instances: Sequence[str]) -> list[str]:
    """What goes on costing money of machines that are stopped, in words."""
    if not instances:
        return []
    attached = [{"Name": "attachment.instance-id", "Values": list(instances)}]
    found = await aws.pages("ec2", "describe_volumes", "Volumes", Filters=attached)
    if not found:
        return []
    kinds = {volume.get("VolumeType", "") for volume in found}
    await prices.learn_volumes(kinds)
    said = {kind: prices.volume(kind) for kind in kinds}
    size = sum(volume["Size"] for volume in found)
    cost = sum(per_month(volume, said[volume.get("VolumeType", "")]) for volume in found)
    by = f"AWS's list prices for {aws.region}" if all(said.values()) else _TABLE
    return [f"{len(found)} volumes with {size} GiB in all: about ${cost:.2f} a month by {by}"]
