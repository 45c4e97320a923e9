"""One instance type: how large it is and what it costs where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Accelerators that Ray counts as GPU; others have resource names of their own, or none.
_RAY_NAMES = {
    "Inferentia": ("neuron_cores", 4),
    "Inferentia2": ("neuron_cores", 2),
    "Trainium": ("neuron_cores", 2),
}
_NOT_FOR_RAY = ("Virtex", "Qualcomm")
# Ray keeps part of a machine's memory for itself and its object store.
_MEMORY_FOR_WORK = 0.7


@dataclass(frozen=True)
class Price:
    """US dollars an hour; None where it is not known or not sold."""

    on_demand: float | None = None
    spot: float | None = None


@dataclass(frozen=True)
class InstanceType:
    """An instance type. `accelerators` may be a fraction, where a machine has part of a card.
    `partial` prices are those of the machine without its accelerators, whose price is not known:
    good for nothing but a lower limit."""

    name: str
    vcpus: float
    memory_gib: float
    accelerator: str = ""
    accelerators: float = 0.0
    partial: bool = False
    prices: Mapping[str, Price] | None = None

    def price(self, region: str) -> Price:
        """What it costs in a region, as far as that is known for the whole machine."""
        if self.partial or not self.prices:
            return Price()
        return self.prices.get(region, Price())

    @property
    def gpus(self) -> int:
        """How many GPUs Ray sees: part of a card is one device to it."""
        if self.accelerator in _RAY_NAMES or self.accelerator.startswith(_NOT_FOR_RAY):
            return 0
        return max(1, int(self.accelerators)) if self.accelerators else 0

    def resources(self) -> dict[str, float]:
        """What a Ray node on this machine will offer."""
        found: dict[str, float] = {
            "CPU": self.vcpus,
            "memory": int(self.memory_gib * 2**30 * _MEMORY_FOR_WORK),
        }
        if self.gpus:
            found["GPU"] = self.gpus
        if self.accelerator in _RAY_NAMES:
            name, each = _RAY_NAMES[self.accelerator]
            found[name] = self.accelerators * each
        return found
