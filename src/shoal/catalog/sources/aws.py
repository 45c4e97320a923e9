"""Figures from AWS: the price list for on-demand prices, EC2 for sizes and for spot prices.

Everything goes through clients that are handed in, so that tests can stand in for AWS.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from shoal.catalog.instance_type import InstanceType, Price

# Linux on shared hardware, paid by the hour, with nothing preinstalled.
_PLAIN = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "capacitystatus": "Used",
    "preInstalledSw": "NA",
    "licenseModel": "No License required",
}

_LINUX = "Linux/UNIX"
# The price list is served from few regions; this one has all prices.
PRICE_LIST_REGION = "us-east-1"

Client = Any  # boto3 has no types of its own


@dataclass(frozen=True)
class Clients:
    """The price list's client, and EC2's for any region."""

    pricing: Client
    ec2: Callable[[str], Client]


def collect(clients: Clients, regions: Iterable[str], now: datetime) -> list[InstanceType]:
    """Every instance type that any of the regions sells, with what it costs there."""
    found: dict[str, InstanceType] = {}
    for region in regions:
        ec2 = clients.ec2(region)
        on_demand = dict(_on_demand(clients.pricing, region))
        spot = _lowest_spot(ec2, now)
        for machine in _machines(ec2):
            price = Price(on_demand.get(machine.name), spot.get(machine.name))
            if price == Price():
                continue
            known = found.get(machine.name, machine)
            found[machine.name] = replace(known, prices={**(known.prices or {}), region: price})
    return sorted(found.values(), key=lambda entry: entry.name)


def _on_demand(pricing: Client, region: str) -> Iterator[tuple[str, float]]:
    for product in _pages(pricing.get_products, "PriceList", **machines_in(region)):
        yield from machine_prices(product)


def machines_in(region: str, **more: str) -> dict[str, Any]:
    """What the price list is asked for the machines of a region, or for one of them."""
    return _products({**_PLAIN, "regionCode": region, **more})


def volumes_in(region: str, kind: str) -> dict[str, Any]:
    """What the price list is asked for one kind of disk."""
    return _products({"regionCode": region, "volumeApiName": kind})


def _products(attributes: Mapping[str, str]) -> dict[str, Any]:
    filters = [
        {"Type": "TERM_MATCH", "Field": field, "Value": value}
        for field, value in attributes.items()
    ]
    return {"ServiceCode": "AmazonEC2", "Filters": filters}


def machine_prices(product: str) -> Iterator[tuple[str, float]]:
    """An instance type and its price an hour, from one entry of the price list."""
    document = json.loads(product)
    name = document["product"]["attributes"].get("instanceType")
    for unit, price in _dimensions(document):
        if name and unit == "hrs":
            yield name, price
            return


def volume_prices(product: str) -> Iterator[tuple[str, float]]:
    """What a disk costs a month for each unit of what it has: a GiB, an operation a second, a MiB
    a second."""
    for unit, price in _dimensions(json.loads(product)):
        if unit == "gb-mo":
            yield "gib", price
        elif unit == "iops-mo":
            yield "iops", price
        elif unit == "gibps-mo":
            yield "throughput", price / 1024
        elif unit == "mibps-mo":
            yield "throughput", price


def _dimensions(document: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Units and prices that are more than nothing; of several steps, the first."""
    for term in document.get("terms", {}).get("OnDemand", {}).values():
        for dimension in term["priceDimensions"].values():
            price = float(dimension["pricePerUnit"].get("USD", 0))
            if price > 0 and dimension.get("beginRange", "0") == "0":
                yield dimension["unit"].lower(), price


def _lowest_spot(ec2: Client, now: datetime) -> dict[str, float]:
    """The lowest current price over a region's zones."""
    lowest: dict[str, float] = {}
    for entry in _pages(
        ec2.describe_spot_price_history,
        "SpotPriceHistory",
        StartTime=now,
        ProductDescriptions=[_LINUX],
    ):
        price = float(entry["SpotPrice"])
        name = entry["InstanceType"]
        if price > 0:
            lowest[name] = min(price, lowest.get(name, price))
    return lowest


def spot_now(names: Iterable[str], now: datetime) -> dict[str, Any]:
    """What EC2 is asked for the spot prices of today, and of these types only."""
    return {"InstanceTypes": sorted(names), "StartTime": now, "ProductDescriptions": [_LINUX]}


def _machines(ec2: Client) -> Iterator[InstanceType]:
    for entry in _pages(ec2.describe_instance_types, "InstanceTypes"):
        card, count = _accelerator(entry)
        yield InstanceType(
            name=entry["InstanceType"],
            vcpus=entry["VCpuInfo"]["DefaultVCpus"],
            memory_gib=entry["MemoryInfo"]["SizeInMiB"] / 1024,
            accelerator=card,
            accelerators=count,
        )


def _accelerator(entry: Mapping[str, Any]) -> tuple[str, float]:
    for info, devices in (
        ("GpuInfo", "Gpus"),
        ("NeuronInfo", "NeuronDevices"),
        ("InferenceAcceleratorInfo", "Accelerators"),
        ("FpgaInfo", "Fpgas"),
    ):
        for device in entry.get(info, {}).get(devices, []):
            return device["Name"], float(device["Count"])
    return "", 0.0


def _pages(call: Callable[..., Mapping[str, Any]], key: str, **arguments: Any) -> Iterator[Any]:
    """The entries of all pages of an answer."""
    token: str | None = None
    while True:
        page = call(**arguments, **({"NextToken": token} if token else {}))
        yield from page[key]
        token = page.get("NextToken")
        if not token:
            return
