"""Queries the price catalog for instance types."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shoal.catalog import CLOUDS, Cloud, InstanceType, Price, load_price_table
from shoal.core.errors import NotFoundError


@dataclass(frozen=True)
class PriceQuery:
    """Minimum requirements of an instance type. `accelerator` is part of the accelerator's name,
    `name` a prefix of the instance type's."""

    clouds: tuple[Cloud, ...] = CLOUDS
    regions: tuple[str, ...] = ()
    cpus: float = 0.0
    memory_gib: float = 0.0
    gpus: int = 0
    accelerator: str = ""
    name: str = ""
    spot: bool = False


@dataclass(frozen=True)
class PriceLine:
    """One instance type in one region. A `partial` price does not include the accelerators: it is
    a lower bound."""

    cloud: Cloud
    name: str
    region: str
    vcpus: float
    memory_gib: float
    accelerator: str
    accelerators: float
    on_demand: float | None
    spot: float | None
    partial: bool
    dated: str


def prices(query: PriceQuery) -> list[PriceLine]:
    """All matching instance types, cheapest first, partial prices last."""
    for region in query.regions:
        if not any(region in load_price_table(cloud).regions for cloud in query.clouds):
            known = sorted({r for cloud in query.clouds for r in load_price_table(cloud).regions})
            raise NotFoundError(
                f"the price catalog has no region {region}", fix=f"use one of {', '.join(known)}"
            )
    lines = [line for cloud in query.clouds for line in _lines(cloud, query)]

    def order(line: PriceLine) -> tuple[object, ...]:
        price = line.spot if query.spot else line.on_demand
        return (line.partial, price is None, price or 0.0, line.cloud, line.name, line.region)

    return sorted(lines, key=order)


def cheapest_regions(lines: Sequence[PriceLine]) -> list[PriceLine]:
    """The first line of each instance type, which is its cheapest region."""
    cheapest: dict[tuple[str, str], PriceLine] = {}
    for line in lines:
        cheapest.setdefault((line.cloud, line.name), line)
    return list(cheapest.values())


def _lines(cloud: Cloud, query: PriceQuery) -> Iterator[PriceLine]:
    dated = load_price_table(cloud).dated
    for instance_type in load_price_table(cloud):
        if not _matches(instance_type, query):
            continue
        for region, price in (instance_type.prices or {}).items():
            if query.regions and region not in query.regions:
                continue
            if (price.spot if query.spot else price.on_demand) is not None:
                yield _line(cloud, instance_type, region, price, dated)


def _matches(instance_type: InstanceType, query: PriceQuery) -> bool:
    return (
        instance_type.vcpus >= query.cpus
        and instance_type.memory_gib >= query.memory_gib
        # An eighth of a GPU is one for Ray, but not for this question.
        and min(instance_type.gpus, instance_type.accelerators) >= query.gpus
        and query.accelerator.lower() in instance_type.accelerator.lower()
        and instance_type.name.startswith(query.name)
    )


def _line(
    cloud: Cloud, instance_type: InstanceType, region: str, price: Price, dated: str
) -> PriceLine:
    return PriceLine(
        cloud=cloud,
        name=instance_type.name,
        region=region,
        vcpus=instance_type.vcpus,
        memory_gib=instance_type.memory_gib,
        accelerator=instance_type.accelerator,
        accelerators=instance_type.accelerators,
        on_demand=price.on_demand,
        spot=price.spot,
        partial=instance_type.partial,
        dated=dated,
    )
