"""Prices from a third-party CSV table, with one row per instance type and region.

A wrong price is worse than none, so known errors of such tables are corrected: rows without an
instance type are skipped (they price a bare accelerator, not always the one they name); a price of
zero means unknown; a spot price above the on-demand price is lowered to it, being a rounding error;
GCP instance types with GPUs are priced without them and are marked as partial.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from shoal.catalog.instance_type import InstanceType, Price
from shoal.catalog.price_table import Cloud

# The GPUs of GCP's machine types: their number is part of the name, or follows from the vCPUs.
_GCP_GPUS_BY_NAME = (
    (re.compile(r"a2-highgpu-(\d+)g"), "A100"),
    (re.compile(r"a2-megagpu-(\d+)g"), "A100"),
    (re.compile(r"a2-ultragpu-(\d+)g"), "A100-80GB"),
    (re.compile(r"a3-(?:high|edge|mega)gpu-(\d+)g"), "H100"),
    (re.compile(r"a3-ultragpu-(\d+)g"), "H200"),
    (re.compile(r"a4-highgpu-(\d+)g"), "B200"),
)
_GCP_GPUS_BY_VCPUS: Mapping[str, tuple[str, Mapping[int, float]]] = {
    "g2": ("L4", {4: 1, 8: 1, 12: 1, 16: 1, 32: 1, 24: 2, 48: 4, 96: 8}),
    "g4": (
        "RTX PRO 6000",
        {6: 0.125, 12: 0.25, 24: 0.5, 48: 1, 96: 2, 192: 4, 384: 8},
    ),
}


def read(cloud: Cloud, lines: Iterable[str]) -> list[InstanceType]:
    """The instance types in a table with the columns instance_type, region, vcpus, memory_gib,
    accelerator, accelerator_count, on_demand_usd_hour and lowest_spot_usd_hour."""
    instance_types: dict[str, InstanceType] = {}
    for row in csv.DictReader(lines):
        name = row["instance_type"]
        if not name:
            continue
        entry = instance_types.get(name) or _instance_type(cloud, row)
        price = _price(row["on_demand_usd_hour"], row["lowest_spot_usd_hour"])
        prices = {**(entry.prices or {}), **({row["region"]: price} if price else {})}
        instance_types[name] = replace(entry, prices=prices)
    return sorted(instance_types.values(), key=lambda entry: entry.name)


def _instance_type(cloud: Cloud, row: Mapping[str, str]) -> InstanceType:
    name, vcpus = row["instance_type"], float(row["vcpus"])
    accelerator, count = row["accelerator"], float(row["accelerator_count"] or 0)
    partial = False
    if cloud == "gcp" and not accelerator:
        accelerator, count = _gcp_gpus(name, int(vcpus))
        partial = bool(accelerator)
    return InstanceType(name, vcpus, float(row["memory_gib"]), accelerator, count, partial)


def _gcp_gpus(name: str, vcpus: int) -> tuple[str, float]:
    """The GPU of a GCP machine type, and its count."""
    for pattern, gpu in _GCP_GPUS_BY_NAME:
        if match := pattern.match(name):
            return gpu, float(match[1])
    gpu, by_vcpus = _GCP_GPUS_BY_VCPUS.get(name.split("-")[0], ("", {}))
    count = by_vcpus.get(vcpus, 0.0)
    return (gpu, count) if count else ("", 0.0)


def _price(on_demand: str, spot: str) -> Price | None:
    on_demand_price = float(on_demand or 0) or None
    spot_price = float(spot or 0) or None
    if on_demand_price is not None and spot_price is not None:
        spot_price = min(spot_price, on_demand_price)
    if on_demand_price is None and spot_price is None:
        return None
    return Price(on_demand_price, spot_price)
