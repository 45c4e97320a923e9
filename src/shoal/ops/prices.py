"""Which machines would do, and what they cost: a question to the price catalog."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shoal.catalog import CLOUDS, Cloud, InstanceType, Price, load_price_table
from shoal.core.errors import NotFoundError


@dataclass(frozen=True)
class PriceQuery:
    """What a machine must have at least; `accelerator` is part of a card's name."""

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
    """One machine in one region. A price that is `partial` leaves the machine's accelerators
    out, and is a lower limit."""

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


def prices(wish: PriceQuery) -> list[PriceLine]:
    """All machines that would do, cheapest first, those with a partial price last."""
    for region in wish.regions:
        if not any(region in load_price_table(cloud).regions for cloud in wish.clouds):
            known = sorted({r for cloud in wish.clouds for r in load_price_table(cloud).regions})
            raise NotFoundError(
                f"the price catalog has no region {region}", fix=f"it has {', '.join(known)}"
            )
    found = [line for cloud in wish.clouds for line in _lines(cloud, wish)]

    def order(line: PriceLine) -> tuple[object, ...]:
        price = line.spot if wish.spot else line.on_demand
        return (line.partial, price is None, price or 0.0, line.cloud, line.name, line.region)

    return sorted(found, key=order)


def cheapest_of_each(lines: Sequence[PriceLine]) -> list[PriceLine]:
    """The first line of every machine: the region where it costs least."""
    cheapest: dict[tuple[str, str], PriceLine] = {}
    for line in lines:
        cheapest.setdefault((line.cloud, line.name), line)
    return list(cheapest.values())


def _lines(cloud: Cloud, wish: PriceQuery) -> Iterator[PriceLine]:
    dated = load_price_table(cloud).dated
    for listing in load_price_table(cloud):
        if not _would_do(listing, wish):
            continue
        for region, price in (listing.prices or {}).items():
            if wish.regions and region not in wish.regions:
                continue
            if (price.spot if wish.spot else price.on_demand) is not None:
                yield _line(cloud, listing, region, price, dated)


def _would_do(listing: InstanceType, wish: PriceQuery) -> bool:
    return (
        listing.vcpus >= wish.cpus
        and listing.memory_gib >= wish.memory_gib
        and listing.gpus >= wish.gpus
        and wish.accelerator.lower() in listing.accelerator.lower()
        and listing.name.startswith(wish.name)
    )


def _line(cloud: Cloud, listing: InstanceType, region: str, price: Price, dated: str) -> PriceLine:
    return PriceLine(
        cloud=cloud,
        name=listing.name,
        region=region,
        vcpus=listing.vcpus,
        memory_gib=listing.memory_gib,
        accelerator=listing.accelerator,
        accelerators=listing.accelerators,
        on_demand=price.on_demand,
        spot=price.spot,
        partial=listing.partial,
        dated=dated,
    )
