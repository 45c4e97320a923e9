"""Machine types of Compute Engine that the price table has no line for: custom ones, and those with
attached GPUs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shoal.catalog.instance_type import InstanceType, Price
from shoal.catalog.price_table import load_price_table

_CUSTOM = re.compile(r"(?:([a-z]\w*)-)?custom-(\d+)-(\d+)(-ext)?")
_DEFAULT_FAMILY = "n1"
# Google charges this much more for the parts of a custom type than for those of a predefined one.
_PREMIUM = 1.05
_WITHOUT_PREMIUM = ("e2",)


def gcp_machine_type(config: Mapping[str, Any]) -> InstanceType | None:
    """The machine type of a `node_config` or of an instance's record. The price table has no prices
    of attached GPUs, so with them its price is partial."""
    name = str(config.get("machineType") or "").rpartition("/")[2]
    found = load_price_table("gcp").find(name) or _custom_type(name)
    attached = config.get("guestAccelerators") or ()
    if found is None or not attached:
        return found
    gpu = gpu_name(str(attached[0].get("acceleratorType", "")))
    count = sum(float(entry.get("acceleratorCount") or 0) for entry in attached)
    return replace(found, accelerator=gpu, accelerators=count, partial=True)


def gpu_name(accelerator_type: str) -> str:
    """The model of a GPU as Ray names it: T4 for `nvidia-tesla-t4`, A100 for `nvidia-a100-80gb`."""
    parts = accelerator_type.rpartition("/")[2].split("-")
    return next((part.upper() for part in parts if part not in ("nvidia", "tesla")), "")


def _custom_type(name: str) -> InstanceType | None:
    """A custom type, priced by its vCPUs and its memory. Extended memory has another price."""
    match = _CUSTOM.fullmatch(name)
    if match is None:
        return None
    family = match[1] or _DEFAULT_FAMILY
    vcpus, memory = float(match[2]), float(match[3]) / 1024
    table = load_price_table("gcp")
    standard = table.find(f"{family}-standard-2")
    highmem = table.find(f"{family}-highmem-2")
    prices: dict[str, Price] = {}
    if standard is not None and highmem is not None:
        factor = 1.0 if family in _WITHOUT_PREMIUM else _PREMIUM
        for region in standard.prices or {}:
            on_demand, spot = (
                _of_parts(standard, highmem, region, market, vcpus, memory)
                for market in ("on_demand", "spot")
            )
            prices[region] = Price(
                on_demand * factor if on_demand else None, spot * factor if spot else None
            )
    return InstanceType(name, vcpus, memory, partial=bool(match[4]), prices=prices)


def _of_parts(
    standard: InstanceType,
    highmem: InstanceType,
    region: str,
    market: str,
    vcpus: float,
    memory: float,
) -> float | None:
    """The price of so many vCPUs and GiB, from two types that differ in their memory only."""
    small = getattr(standard.price(region), market)
    large = getattr(highmem.price(region), market)
    if small is None or large is None:
        return None
    per_gib = (large - small) / (highmem.memory_gib - standard.memory_gib)
    per_vcpu = (small - per_gib * standard.memory_gib) / standard.vcpus
    return float(per_vcpu * vcpus + per_gib * memory)
