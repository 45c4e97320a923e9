"""Figures from a table that someone collected: one row per type and region, as CSV.

Such tables have their quirks, and a wrong price is worse than none. Rows without an instance
type are left out (they price a bare accelerator, and not always the one they name); a price of
zero is unknown; a spot price above the on-demand price is that price, rounded; machines of GCP
that carry GPUs are priced without them, and are marked so.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from shoal.catalog.instance_type import InstanceType, Price
from shoal.catalog.price_table import Cloud

# GCP's accelerator machines, by the names Google gives them: the card, and the number of cards
# from the machine's name or from its number of vCPUs.
_GCP_CARDS = (
    (re.compile(r"a2-highgpu-(\d+)g"), "A100"),
    (re.compile(r"a2-megagpu-(\d+)g"), "A100"),
    (re.compile(r"a2-ultragpu-(\d+)g"), "A100-80GB"),
    (re.compile(r"a3-(?:high|edge|mega)gpu-(\d+)g"), "H100"),
    (re.compile(r"a3-ultragpu-(\d+)g"), "H200"),
    (re.compile(r"a4-highgpu-(\d+)g"), "B200"),
)
_GCP_BY_VCPUS: Mapping[str, tuple[str, Mapping[int, float]]] = {
    "g2": ("L4", {4: 1, 8: 1, 12: 1, 16: 1, 32: 1, 24: 2, 48: 4, 96: 8}),
    "g4": (
        "RTX PRO 6000",
        {6: 0.125, 12: 0.25, 24: 0.5, 48: 1, 96: 2, 192: 4, 384: 8},
    ),
}


def read(cloud: Cloud, lines: Iterable[str]) -> list[InstanceType]:
    """The listings in a table with the columns instance_type, region, vcpus, memory_gib,
    accelerator, accelerator_count, on_demand_usd_hour and lowest_spot_usd_hour."""
    found: dict[str, InstanceType] = {}
    for row in csv.DictReader(lines):
        name = row["instance_type"]
        if not name:
            continue
        listing = found.get(name) or _machine(cloud, row)
        price = _price(row["on_demand_usd_hour"], row["lowest_spot_usd_hour"])
        prices = {**(listing.prices or {}), **({row["region"]: price} if price else {})}
        found[name] = replace(listing, prices=prices)
    return sorted(found.values(), key=lambda entry: entry.name)


def _machine(cloud: Cloud, row: Mapping[str, str]) -> InstanceType:
    name, vcpus = row["instance_type"], float(row["vcpus"])
    accelerator, count = row["accelerator"], float(row["accelerator_count"] or 0)
    partial = False
    if cloud == "gcp" and not accelerator:
        accelerator, count = gcp_cards(name, int(vcpus))
        partial = bool(accelerator)
    return InstanceType(name, vcpus, float(row["memory_gib"]), accelerator, count, partial)


def gcp_cards(name: str, vcpus: int) -> tuple[str, float]:
    """Which card a GCP machine carries, and how many of it."""
    for pattern, card in _GCP_CARDS:
        if match := pattern.match(name):
            return card, float(match[1])
    card, by_vcpus = _GCP_BY_VCPUS.get(name.split("-")[0], ("", {}))
    count = by_vcpus.get(vcpus, 0.0)
    return (card, count) if count else ("", 0.0)


def _price(on_demand: str, spot: str) -> Price | None:
    full = float(on_demand or 0) or None
    low = float(spot or 0) or None
    if full is not None and low is not None:
        low = min(low, full)
    return Price(full, low) if full or low else None
