"""EBS volumes: the block device mappings of a launch, and what volumes cost while their instance
is stopped, by AWS's price list, or by a small table where that is not reachable."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shoal.providers.aws.aws_client import AwsClient
from shoal.providers.aws.pricing import Prices
from shoal.spec.cluster_spec import VolumeSpec


@dataclass(frozen=True)
class Rate:
    """US dollars per month: per GiB, and per IOPS and MiB/s beyond what is included."""

    gib: float
    iops: float = 0.0
    free_iops: int = 0
    throughput: float = 0.0
    free_throughput: int = 0


_ROOT_GIB = 100
# As AWS counts them.
_HOURS_PER_MONTH = 730
# Every principal of the account may use it for volumes.
_AWS_MANAGED_KEY = "alias/aws/ebs"
_TABLE = "the list prices of us-east-1 in 2025"
# As AWS published them; most other regions are more expensive.
_RATES = {
    "gp3": Rate(0.08, iops=0.005, free_iops=3000, throughput=0.04, free_throughput=125),
    "gp2": Rate(0.10),
    "io1": Rate(0.125, iops=0.065),
    "io2": Rate(0.125, iops=0.065),
    "st1": Rate(0.045),
    "sc1": Rate(0.015),
    "standard": Rate(0.05),
}
# An unknown volume type is priced as the usual one.
_DEFAULT_RATE = _RATES["gp3"]


def block_device_mappings(volumes: Iterable[VolumeSpec]) -> list[dict[str, Any]]:
    """The RunInstances mappings of those volumes that are created with an instance."""
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


def snapshot_gib(image: Mapping[str, Any]) -> int:
    """The size of an AMI's root snapshot; 0 if unknown."""
    root = image.get("RootDeviceName")
    sizes = [
        (mapping.get("Ebs") or {}).get("VolumeSize") or 0
        for mapping in image.get("BlockDeviceMappings") or ()
        if mapping.get("DeviceName") == root
    ]
    return max(map(int, sizes), default=0)


def default_root_volume(
    image: Mapping[str, Any], mappings: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """The mapping of the root volume for an instance of this AMI; None if `mappings` has one, or
    the root is no volume. The AMI's own size, usually 8 GiB, does not even hold PyTorch."""
    root = image.get("RootDeviceName")
    is_configured = any(mapping.get("DeviceName") == root for mapping in mappings)
    if not root or is_configured or image.get("RootDeviceType") == "instance-store":
        return None
    size = max(_ROOT_GIB, snapshot_gib(image))
    return {"DeviceName": root, "Ebs": {"VolumeSize": size, "VolumeType": "gp3"}}


def at_least(mapping: Mapping[str, Any], gib: int) -> dict[str, Any]:
    """The same mapping with a volume of at least this size."""
    volume = mapping["Ebs"]
    return {**mapping, "Ebs": {**volume, "VolumeSize": max(volume["VolumeSize"], gib)}}


def fits(image: Mapping[str, Any], mappings: Sequence[Mapping[str, Any]]) -> bool:
    """Whether an AMI fits on the root volume that these mappings configure, if they do."""
    root = image.get("RootDeviceName")
    sizes = [(m.get("Ebs") or {}).get("VolumeSize") for m in mappings if m["DeviceName"] == root]
    return all(size is None or int(size) >= snapshot_gib(image) for size in sizes)


async def customer_keys(aws: AwsClient, configs: Iterable[Mapping[str, Any]]) -> list[str]:
    """The ARNs of the KMS keys, managed by the customer, that volumes of these configurations are
    encrypted with: the account's default key, and those that the file names. A caller who may not
    read the default key gets the others."""
    response = await aws.call(
        "ec2", "get_ebs_default_kms_key_id", ignore_codes=("UnauthorizedOperation",)
    )
    keys = [str(response.get("KmsKeyId", ""))]
    for config in configs:
        for mapping in config.get("BlockDeviceMappings") or ():
            keys.append(str((mapping.get("Ebs") or {}).get("KmsKeyId") or ""))
    return sorted({key for key in keys if key.startswith("arn:") and _AWS_MANAGED_KEY not in key})


def monthly_cost(volume: Mapping[str, Any], listed: Mapping[str, float] | None = None) -> float:
    """US dollars per month for one volume of a `DescribeVolumes` response. `listed` are AWS's list
    prices of its volume type, by unit."""
    rate = _RATES.get(volume.get("VolumeType", ""), _DEFAULT_RATE)
    if listed:
        units = {"iops": rate.iops, "throughput": rate.throughput, **listed}
        rate = replace(rate, gib=units["gib"], iops=units["iops"], throughput=units["throughput"])
    iops = max(0, (volume.get("Iops") or 0) - rate.free_iops)
    throughput = max(0, (volume.get("Throughput") or 0) - rate.free_throughput)
    return float(volume["Size"] * rate.gib + iops * rate.iops + throughput * rate.throughput)


def new_volumes(mappings: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The volumes that are created by these mappings, as `DescribeVolumes` would show them."""
    ebs = [mapping.get("Ebs") or {} for mapping in mappings]
    return [
        {**volume, "Size": volume["VolumeSize"], "VolumeType": volume.get("VolumeType", "gp3")}
        for volume in ebs
        if volume.get("VolumeSize")
    ]


def describe_volumes(volumes: Sequence[Mapping[str, Any]]) -> str:
    return " + ".join(f"{volume['Size']} GiB {volume['VolumeType']}" for volume in volumes)


def parse_volumes(text: str) -> list[dict[str, Any]]:
    """The volumes that `describe_volumes` has described."""
    return [
        {"Size": int(size), "VolumeType": volume_type}
        for size, volume_type in re.findall(r"(\d+) GiB (\w+)", text)
    ]


def hourly_cost(prices: Prices, volumes: Sequence[Mapping[str, Any]]) -> float:
    """US dollars per hour for these volumes."""
    listed = {v["VolumeType"]: prices.volume_prices(v["VolumeType"]) for v in volumes}
    monthly = sum(monthly_cost(volume, listed[volume["VolumeType"]]) for volume in volumes)
    return monthly / _HOURS_PER_MONTH


async def costs_while_stopped(
    aws: AwsClient, prices: Prices, instances: Sequence[str]
) -> list[str]:
    """What stopped instances still cost, as text."""
    if not instances:
        return []
    filters = [{"Name": "attachment.instance-id", "Values": list(instances)}]
    volumes = await aws.paginate("ec2", "describe_volumes", "Volumes", Filters=filters)
    if not volumes:
        return []
    volume_types = {volume.get("VolumeType", "") for volume in volumes}
    await prices.refresh_volumes(volume_types)
    listed = {name: prices.volume_prices(name) for name in volume_types}
    size = sum(volume["Size"] for volume in volumes)
    cost = sum(monthly_cost(volume, listed[volume.get("VolumeType", "")]) for volume in volumes)
    source = f"AWS's list prices for {aws.region}" if all(listed.values()) else _TABLE
    return [
        f"{len(volumes)} volumes with {size} GiB in total: about ${cost:.2f} per month by {source}"
    ]
