"""Instance types: which ones a node type may use, what AWS says they have, and the offerings that
the planner chooses from. EC2 is always asked, so new types work without a release of Shoal."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from shoal.core.concurrency import run_all
from shoal.core.errors import ConfigError
from shoal.providers.aws import launch_request
from shoal.providers.aws.aws_client import AwsClient
from shoal.providers.aws.pricing import Prices
from shoal.scaling.inputs import Offering
from shoal.spec.cluster_spec import ClusterSpec

Architecture = Literal["x86_64", "arm64"]

# The part of the memory that Ray gives to tasks; the rest is for its object store and the system.
_MEMORY_SHARE = 0.7


# How long an instance may take from `running` until SSH answers. Bare metal initializes its
# hardware first, and large machines their memory and accelerators.
_BOOT_SECONDS, _LARGE_BOOT_SECONDS, _METAL_BOOT_SECONDS = 300.0, 900.0, 1800.0
_LARGE_FAMILIES = ("p", "trn", "dl", "u-", "x", "hpc")
_LARGE_SIZE = 24  # times xlarge


def boot_timeout(instance_type: str) -> float:
    """How many seconds an instance of this type may take until SSH answers."""
    family, _, size = instance_type.partition(".")
    if size.startswith("metal") or family.startswith("mac"):
        return _METAL_BOOT_SECONDS
    factor = size.removesuffix("xlarge")
    is_large = factor.isdigit() and int(factor) >= _LARGE_SIZE
    return _LARGE_BOOT_SECONDS if is_large or family.startswith(_LARGE_FAMILIES) else _BOOT_SECONDS


@dataclass(frozen=True)
class InstanceTypeInfo:
    """One instance type: its architecture, and the resources that Ray will find on it."""

    name: str
    architecture: Architecture
    resources: Mapping[str, float] = field(default_factory=dict)

    @property
    def has_nvidia_gpu(self) -> bool:
        return self.resources.get("GPU", 0) > 0


def candidates(spec: ClusterSpec, node_type: str, config: Mapping[str, Any]) -> list[str]:
    """The instance types that a node type may use, the preferred one first."""
    alternatives = spec.shoal.fallback.get(node_type, ())
    return list(dict.fromkeys([launch_request.instance_type(config), *alternatives]))


async def describe_candidates(
    aws: AwsClient, spec: ClusterSpec, configs: Mapping[str, Mapping[str, Any]]
) -> dict[str, InstanceTypeInfo]:
    """Every instance type that any node type of the file may use. Always all of them, so that all
    callers share one request. `configs` are the configurations known with their templates."""
    plain = {name: node_type.node_config for name, node_type in spec.node_types.items()}
    names = {
        instance_type
        for node_type, config in {**plain, **configs}.items()
        for instance_type in candidates(spec, node_type, config)
    }
    return await describe(aws, names)


async def describe(aws: AwsClient, names: Collection[str]) -> dict[str, InstanceTypeInfo]:
    """The instance types among `names` that the region has, in one call."""
    if not names:
        return {}
    filters = [{"Name": "instance-type", "Values": sorted(set(names))}]
    records = await aws.cached(
        f"instance types {sorted(set(names))}",
        lambda: aws.paginate("ec2", "describe_instance_types", "InstanceTypes", Filters=filters),
    )
    return {record["InstanceType"]: read_type(record) for record in records}


def require(aws: AwsClient, types: Mapping[str, InstanceTypeInfo], name: str) -> InstanceTypeInfo:
    """One of the types that `describe` returned."""
    if name not in types:
        raise ConfigError(
            f"there is no instance type {name} in {aws.region}",
            why="EC2 does not list it there",
            fix="correct InstanceType in node_config, or choose another region",
        )
    return types[name]


def read_type(record: Mapping[str, Any]) -> InstanceTypeInfo:
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
    architectures = record["ProcessorInfo"]["SupportedArchitectures"]
    return InstanceTypeInfo(
        record["InstanceType"], "arm64" if "arm64" in architectures else "x86_64", resources
    )


async def offerings(
    aws: AwsClient,
    prices: Prices,
    spec: ClusterSpec,
    configs: Mapping[str, Mapping[str, Any]],
) -> Sequence[Offering]:
    """One offering per node type whose instance type the region has. `configs` are the
    configurations of all node types."""
    types = {name: launch_request.instance_type(config) for name, config in configs.items()}
    markets = {name: launch_request.market(config) for name, config in configs.items()}
    on_demand = {types[name] for name, market in markets.items() if market != "spot"}
    spot = {types[name] for name, market in markets.items() if market == "spot"}
    infos, _ = await run_all(
        [describe_candidates(aws, spec, configs), prices.refresh(on_demand, spot)]
    )
    return [
        Offering(
            node_type=name,
            market=markets[name],
            price_per_hour=prices.per_hour(instance_type, markets[name]),
            resources=infos[instance_type].resources,
        )
        for name, instance_type in types.items()
        if infos is not None and instance_type in infos
    ]
