"""`InstanceType`: the size of an instance type and its prices per region."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Accelerators that Ray does not count as GPU: the resource, and its amount per device.
_OTHER_RAY_RESOURCES = {
    "Inferentia": ("neuron_cores", 4),
    "Inferentia2": ("neuron_cores", 2),
    "Trainium": ("neuron_cores", 2),
}
_UNKNOWN_TO_RAY = ("Virtex", "Qualcomm")
# Ray reserves the rest of the memory for itself and its object store.
MEMORY_FRACTION = 0.7


@dataclass(frozen=True)
class Price:
    """US dollars per hour; None if unknown or not offered."""

    on_demand: float | None = None
    spot: float | None = None


@dataclass(frozen=True)
class InstanceType:
    """An instance type. `accelerators` is a fraction if it has a part of a device. `partial` prices
    do not include the accelerators, whose price is unknown: they are only a lower bound."""

    name: str
    vcpus: float
    memory_gib: float
    accelerator: str = ""
    accelerators: float = 0.0
    partial: bool = False
    prices: Mapping[str, Price] | None = None

    def price(self, region: str) -> Price:
        """The price in a region; unknown if the table only has a partial one."""
        if self.partial or not self.prices:
            return Price()
        return self.prices.get(region, Price())

    @property
    def gpus(self) -> int:
        """The number of GPUs that Ray detects: a part of a device counts as one."""
        if self.accelerator in _OTHER_RAY_RESOURCES or self.accelerator.startswith(_UNKNOWN_TO_RAY):
            return 0
        return max(1, int(self.accelerators)) if self.accelerators else 0

    def resources(self) -> dict[str, float]:
        """The resources of a Ray node on this instance type."""
        resources: dict[str, float] = {
            "CPU": self.vcpus,
            "memory": int(self.memory_gib * 2**30 * MEMORY_FRACTION),
        }
        if self.gpus:
            resources["GPU"] = self.gpus
        if self.accelerator in _OTHER_RAY_RESOURCES:
            name, per_device = _OTHER_RAY_RESOURCES[self.accelerator]
            resources[name] = self.accelerators * per_device
        return resources
