"""Sizes and prices from AWS: on-demand prices from the Price List API, sizes and spot prices from
EC2. The provider uses the same queries and parsers for current prices.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from shoal.catalog.instance_type import InstanceType, Price

# Linux on shared tenancy, on demand, without preinstalled software.
_PLAIN_LINUX = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "capacitystatus": "Used",
    "preInstalledSw": "NA",
    "licenseModel": "No License required",
}

_SPOT_PRODUCT = "Linux/UNIX"
# The Price List API has endpoints in few regions; each has the prices of all regions.
PRICE_LIST_REGION = "us-east-1"

Client = Any  # boto3 has no type annotations


@dataclass(frozen=True)
class Clients:
    """The client of the Price List API, and EC2 clients by region."""

    pricing: Client
    ec2: Callable[[str], Client]


def collect(clients: Clients, regions: Iterable[str], now: datetime) -> list[InstanceType]:
    """Every instance type that is offered in any of the regions, with its prices."""
    instance_types: dict[str, InstanceType] = {}
    for region in regions:
        ec2 = clients.ec2(region)
        on_demand = dict(_on_demand(clients.pricing, region))
        spot = _lowest_spot(ec2, now)
        for size in _sizes(ec2):
            price = Price(on_demand.get(size.name), spot.get(size.name))
            if price == Price():
                continue
            entry = instance_types.get(size.name, size)
            prices = {**(entry.prices or {}), region: price}
            instance_types[size.name] = replace(entry, prices=prices)
    return sorted(instance_types.values(), key=lambda entry: entry.name)


def _on_demand(pricing: Client, region: str) -> Iterator[tuple[str, float]]:
    query = instance_price_query(region)
    for product in _paginate(pricing, "get_products", "PriceList", **query):
        yield from instance_prices(product)


def instance_price_query(region: str, **attributes: str) -> dict[str, Any]:
    """The arguments of GetProducts for instance types in a region, limited by attributes."""
    return _product_query({**_PLAIN_LINUX, "regionCode": region, **attributes})


def volume_price_query(region: str, volume_type: str) -> dict[str, Any]:
    """The arguments of GetProducts for a volume type in a region."""
    return _product_query({"regionCode": region, "volumeApiName": volume_type})


def _product_query(attributes: Mapping[str, str]) -> dict[str, Any]:
    filters = [
        {"Type": "TERM_MATCH", "Field": field, "Value": value}
        for field, value in attributes.items()
    ]
    return {"ServiceCode": "AmazonEC2", "Filters": filters}


def instance_prices(product: str) -> Iterator[tuple[str, float]]:
    """An instance type and its price per hour, from one entry of the price list."""
    document = json.loads(product)
    name = document["product"]["attributes"].get("instanceType")
    for unit, price in _dimensions(document):
        if name and unit == "hrs":
            yield name, price
            return


def volume_prices(product: str) -> Iterator[tuple[str, float]]:
    """The monthly prices of a volume: per GiB, per provisioned IOPS, and per MiB/s of
    throughput."""
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
    """Units and nonzero prices; of tiered prices, the first tier."""
    for term in document.get("terms", {}).get("OnDemand", {}).values():
        for dimension in term["priceDimensions"].values():
            price = float(dimension["pricePerUnit"].get("USD", 0))
            if price > 0 and dimension.get("beginRange", "0") == "0":
                yield dimension["unit"].lower(), price


def _lowest_spot(ec2: Client, now: datetime) -> dict[str, float]:
    """The lowest current spot prices over all zones of a region."""
    lowest: dict[str, float] = {}
    query = {"StartTime": now, "ProductDescriptions": [_SPOT_PRODUCT]}
    for entry in _paginate(ec2, "describe_spot_price_history", "SpotPriceHistory", **query):
        price = float(entry["SpotPrice"])
        name = entry["InstanceType"]
        if price > 0:
            lowest[name] = min(price, lowest.get(name, price))
    return lowest


def spot_price_query(names: Iterable[str], now: datetime) -> dict[str, Any]:
    """The arguments of DescribeSpotPriceHistory for the current prices of instance types."""
    return {
        "InstanceTypes": sorted(names),
        "StartTime": now,
        "ProductDescriptions": [_SPOT_PRODUCT],
    }


def _sizes(ec2: Client) -> Iterator[InstanceType]:
    for entry in _paginate(ec2, "describe_instance_types", "InstanceTypes"):
        accelerator, count = _accelerator(entry)
        yield InstanceType(
            name=entry["InstanceType"],
            vcpus=entry["VCpuInfo"]["DefaultVCpus"],
            memory_gib=entry["MemoryInfo"]["SizeInMiB"] / 1024,
            accelerator=accelerator,
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


def _paginate(client: Client, operation: str, key: str, **arguments: Any) -> Iterator[Any]:
    """The entries under `key` on all pages of a response."""
    for page in client.get_paginator(operation).paginate(**arguments):
        yield from page[key]
