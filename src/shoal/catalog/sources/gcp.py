"""Sizes and prices from GCP: sizes from Compute Engine, prices from the Cloud Billing catalog.

GCP prices vCPUs, memory and GPUs separately, per region. A machine type costs the sum of its parts;
it has no price if the price of a part is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from shoal.catalog.instance_type import InstanceType, Price

COMPUTE = "https://compute.googleapis.com/compute/v1"
BILLING = "https://cloudbilling.googleapis.com/v1"
_COMPUTE_ENGINE = "services/6F81-5844-456A"

# An authorized GET request: takes a URL and a query, returns the JSON document.
Get = Callable[[str, Mapping[str, str]], Mapping[str, Any]]

_CPU_OR_MEMORY = re.compile(
    r"^(?:Spot Preemptible )?(?P<family>[A-Z]\d[A-Z]?)"
    r"(?: (?:AMD|Arm|Predefined|Memory-optimized|Compute optimized))*"
    r" Instance (?P<part>Core|Ram) running in"
)
_GPU = re.compile(r"^(?:Spot Preemptible )?Nvidia (?P<gpu>.+?) GPU(?: attached to .*)? running in")
_GPU_NAMES = {
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
    family: str  # a machine family such as "n2", or the name of a GPU
    part: str  # Core, Ram or Gpu
    region: str
    spot: bool
    price: float


def collect(get: Get, project: str, regions: Iterable[str]) -> list[InstanceType]:
    """Every machine type of the regions, with its prices."""
    regions = list(regions)
    prices = {
        (p.family, p.part, p.region, p.spot): p.price
        for p in _part_prices(get)
        if p.region in regions
    }
    by_region: dict[str, dict[str, Price]] = {}
    sizes: dict[str, InstanceType] = {}
    for region, entry in _machine_types(get, project, regions):
        size = _size(entry)
        sizes[size.name] = size
        price = Price(*(_total(size, entry, region, prices, spot) for spot in (False, True)))
        if price != Price():
            by_region.setdefault(size.name, {})[region] = price
    return [
        replace(size, prices=by_region[name])
        for name, size in sorted(sizes.items())
        if name in by_region
    ]


def _total(
    size: InstanceType,
    entry: Mapping[str, Any],
    region: str,
    prices: Mapping[tuple[str, str, str, bool], float],
    spot: bool,
) -> float | None:
    family = size.name.split("-")[0]
    parts = [
        (prices.get((family, "Core", region, spot)), size.vcpus),
        (prices.get((family, "Ram", region, spot)), size.memory_gib),
    ]
    for gpu in entry.get("accelerators", []):
        name = _GPU_NAMES.get(gpu["guestAcceleratorType"], gpu["guestAcceleratorType"])
        parts.append((prices.get((name, "Gpu", region, spot)), gpu["guestAcceleratorCount"]))
    total = 0.0
    for price, amount in parts:
        if price is None:
            return None
        total += price * amount
    return round(total, 6)


def _size(entry: Mapping[str, Any]) -> InstanceType:
    gpus = entry.get("accelerators", [])
    name = gpus[0]["guestAcceleratorType"] if gpus else ""
    return InstanceType(
        name=entry["name"],
        vcpus=entry["guestCpus"],
        memory_gib=entry["memoryMb"] / 1024,
        accelerator=_GPU_NAMES.get(name, name),
        accelerators=float(gpus[0]["guestAcceleratorCount"]) if gpus else 0.0,
    )


def _machine_types(
    get: Get, project: str, regions: Iterable[str]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Machine types by region: a region has those of all its zones."""
    regions = set(regions)
    for page in _pages(get, f"{COMPUTE}/projects/{project}/aggregated/machineTypes", {}):
        for scope, content in page.get("items", {}).items():
            region = scope.removeprefix("zones/").rpartition("-")[0]
            if region in regions:
                for entry in content.get("machineTypes", []):
                    yield region, entry


def _part_prices(get: Get) -> Iterator[_PartPrice]:
    for page in _pages(get, f"{BILLING}/{_COMPUTE_ENGINE}/skus", {"currencyCode": "USD"}):
        for sku in page.get("skus", []):
            spot = sku["category"]["usageType"] == "Preemptible"
            price = _hourly(sku)
            if price is None or sku["category"]["usageType"] not in ("OnDemand", "Preemptible"):
                continue
            family, part = _part(sku["description"])
            for region in sku.get("serviceRegions", []):
                if family:
                    yield _PartPrice(family, part, region, spot, price)


def _part(description: str) -> tuple[str, str]:
    """The machine family and `Core` or `Ram`, or the GPU and `Gpu`, that a price is for; empty if
    it is for something else."""
    if match := _CPU_OR_MEMORY.match(description):
        return match["family"].lower(), match["part"]
    if match := _GPU.match(description):
        return match["gpu"], "Gpu"
    return "", ""


def _hourly(sku: Mapping[str, Any]) -> float | None:
    for info in sku.get("pricingInfo", []):
        for rate in info["pricingExpression"]["tieredRates"]:
            unit = rate["unitPrice"]
            price = int(unit.get("units", 0)) + unit.get("nanos", 0) / 1e9
            if price > 0:
                return float(price)
    return None


def _pages(get: Get, url: str, query: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
    token = ""
    while True:
        page = get(url, {**query, **({"pageToken": token} if token else {})})
        yield page
        token = page.get("nextPageToken", "")
        if not token:
            return
