"""What an instance type has, as AWS itself describes it: no table of ours that goes stale."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from shoal.core.errors import ConfigError
from shoal.providers.aws.client import AwsClient

Architecture = Literal["x86_64", "arm64"]

# The part of the memory that Ray gives to tasks; the rest is its object store and the system.
_MEMORY_SHARE = 0.7


@dataclass(frozen=True)
class MachineType:
    """One instance type: its processor's kind, and the resources that Ray will find on it."""

    name: str
    architecture: Architecture
    resources: Mapping[str, float] = field(default_factory=dict)

    @property
    def has_nvidia(self) -> bool:
        return self.resources.get("GPU", 0) > 0


async def describe(aws: AwsClient, names: Collection[str]) -> dict[str, MachineType]:
    """Those of the types that the region has, by name, in one call."""
    if not names:
        return {}
    wanted = [{"Name": "instance-type", "Values": sorted(set(names))}]
    found = await aws.once(
        f"types {sorted(set(names))}",
        lambda: aws.pages("ec2", "describe_instance_types", "InstanceTypes", Filters=wanted),
    )
    return {record["InstanceType"]: read_type(record) for record in found}


def pick(aws: AwsClient, known: Mapping[str, MachineType], name: str) -> MachineType:
    """One of the types that `describe` found."""
    if name not in known:
        raise ConfigError(
            f"there is no instance type {name} in {aws.region}",
            why="AWS does not list it there",
            fix="correct InstanceType in node_config, or choose another region",
        )
    return known[name]


def read_type(record: Mapping[str, Any]) -> MachineType:
    """One record of `DescribeInstanceTypes`."""
    resources: dict[str, float] = {
        "CPU": float(record["VCpuInfo"]["DefaultVCpus"]),
        "memory": float(int(record["MemoryInfo"]["SizeInMiB"] * (1 << 20) * _MEMORY_SHARE)),
    }
    for gpu in record.get("GpuInfo", {}).get("Gpus", ()):
        if gpu.get("Manufacturer", "").upper() == "NVIDIA":
            resources["GPU"] = resources.get("GPU", 0.0) + gpu["Count"]
            resources[f"accelerator_type:{gpu['Name'].upper()}"] = 1.0
    for device in record.get("NeuronInfo", {}).get("NeuronDevices", ()):
        cores = device["Count"] * device["CoreInfo"]["Count"]
        resources["neuron_cores"] = resources.get("neuron_cores", 0.0) + cores
        resources["accelerator_type:aws-neuron-core"] = 1.0
    kinds = record["ProcessorInfo"]["SupportedArchitectures"]
    return MachineType(record["InstanceType"], "arm64" if "arm64" in kinds else "x86_64", resources)
