"""Figures from Google: Compute Engine for sizes, the billing catalog for prices.

Google sells cores, memory and cards, each at a price per region. A machine costs the sum of its
parts; one whose parts are not all priced is left without a price.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shoal.catalog.instance_type import InstanceType, Price

COMPUTE = "https://compute.googleapis.com/compute/v1"
BILLING = "https://cloudbilling.googleapis.com/v1"
_COMPUTE_ENGINE = "services/6F81-5844-456A"

# An authorized GET of one JSON document: address and query in, document out.
Get = Callable[[str, Mapping[str, str]], Mapping[str, Any]]

_PART = re.compile(
    r"^(?:Spot Preemptible )?(?P<family>[A-Z]\d[A-Z]?)"
    r"(?: (?:AMD|Arm|Predefined|Memory-optimized|Compute optimized))*"
    r" Instance (?P<part>Core|Ram) running in"
)
_CARD = re.compile(
    r"^(?:Spot Preemptible )?Nvidia (?P<card>.+?) GPU(?: attached to .*)? running in"
)
_CARD_NAMES = {
    "nvidia-l4": "L4",
    "nvidia-tesla-t4": "Tesla T4",
    "nvidia-tesla-v100": "Tesla V100",
    "nvidia-tesla-a100": "Tesla A100",
    "nvidia-a100-80gb": "Tesla A100 80GB",
    "nvidia-h100-80gb": "H100 80GB",
    "nvidia-h100-mega-80gb": "H100 80GB Plus",
    "nvidia-h200-141gb": "H200 141GB",
    "nvidia-b200": "B200",
}


@dataclass(frozen=True)
class _PartPrice:
    family: str  # "n2", or the name of a card
    part: str  # Core, Ram, or Card
    region: str
    spot: bool
    price: float


def collect(get: Get, project: str, regions: Iterable[str]) -> list[InstanceType]:
    """Every machine type of the regions, with what it costs there."""
    regions = list(regions)
    prices = {
        (p.family, p.part, p.region, p.spot): p.price for p in _parts(get) if p.region in regions
    }
    sold: dict[str, dict[str, Price]] = {}
    machines: dict[str, InstanceType] = {}
    for region, entry in _machine_types(get, project, regions):
        listing = _listing(entry)
        machines[listing.name] = listing
        price = Price(*(_sum(listing, entry, region, prices, spot) for spot in (False, True)))
        if price != Price():
            sold.setdefault(listing.name, {})[region] = price
    return [
        InstanceType(
            m.name, m.vcpus, m.memory_gib, m.accelerator, m.accelerators, False, sold[m.name]
        )
        for m in sorted(machines.values(), key=lambda m: m.name)
        if m.name in sold
    ]


def _sum(
    listing: InstanceType,
    entry: Mapping[str, Any],
    region: str,
    prices: Mapping[tuple[str, str, str, bool], float],
    spot: bool,
) -> float | None:
    family = listing.name.split("-")[0]
    parts = [
        (prices.get((family, "Core", region, spot)), listing.vcpus),
        (prices.get((family, "Ram", region, spot)), listing.memory_gib),
    ]
    for card in entry.get("accelerators", []):
        name = _CARD_NAMES.get(card["guestAcceleratorType"], card["guestAcceleratorType"])
        parts.append((prices.get((name, "Card", region, spot)), card["guestAcceleratorCount"]))
    total = 0.0
    for price, amount in parts:
        if price is None:
            return None
        total += price * amount
    return round(total, 6)


def _listing(entry: Mapping[str, Any]) -> InstanceType:
    cards = entry.get("accelerators", [])
    name = cards[0]["guestAcceleratorType"] if cards else ""
    return InstanceType(
        name=entry["name"],
        vcpus=entry["guestCpus"],
        memory_gib=entry["memoryMb"] / 1024,
        accelerator=_CARD_NAMES.get(name, name),
        accelerators=float(cards[0]["guestAcceleratorCount"]) if cards else 0.0,
    )


def _machine_types(
    get: Get, project: str, regions: Iterable[str]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Machine types by region: one that any zone of a region has counts for the region."""
    wanted = set(regions)
    for page in _pages(get, f"{COMPUTE}/projects/{project}/aggregated/machineTypes", {}):
        for scope, content in page.get("items", {}).items():
            region = scope.removeprefix("zones/").rpartition("-")[0]
            if region in wanted:
                for entry in content.get("machineTypes", []):
                    yield region, entry


def _parts(get: Get) -> Iterator[_PartPrice]:
    for page in _pages(get, f"{BILLING}/{_COMPUTE_ENGINE}/skus", {"currencyCode": "USD"}):
        for sku in page.get("skus", []):
            spot = sku["category"]["usageType"] == "Preemptible"
            price = _hourly(sku)
            if price is None or sku["category"]["usageType"] not in ("OnDemand", "Preemptible"):
                continue
            family, part = _what(sku["description"])
            for region in sku.get("serviceRegions", []):
                if family:
                    yield _PartPrice(family, part, region, spot, price)


def _what(description: str) -> tuple[str, str]:
    """Which family's cores or memory, or which card, a price is for; nothing if neither."""
    if match := _PART.match(description):
        return match["family"].lower(), match["part"]
    if match := _CARD.match(description):
        return match["card"], "Card"
    return "", ""


def _hourly(sku: Mapping[str, Any]) -> float | None:
    for info in sku.get("pricingInfo", []):
        for rate in info["pricingExpression"]["tieredRates"]:
            unit = rate["unitPrice"]
            price = int(unit.get("units", 0)) + unit.get("nanos", 0) / 1e9
            if price > 0:
                return float(price)
    return None


def _pages(get: Get, address: str, query: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
    token = ""
    while True:
        page = get(address, {**query, **({"pageToken": token} if token else {})})
        yield page
        token = page.get("nextPageToken", "")
        if not token:
            return
