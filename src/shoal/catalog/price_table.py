"""The shipped figures of one cloud: a text file, a line for each instance type.

One type is found by looking for its line, without reading the others; all of them are read only
when all are asked for. Plain text keeps the difference between two refreshes readable, and the
package compresses it anyway.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Literal, get_args

from shoal.catalog.instance_type import InstanceType, Price
from shoal.core.errors import ConfigError

Cloud = Literal["aws", "gcp"]
CLOUDS: tuple[Cloud, ...] = get_args(Cloud)
_FORMAT = "shoal-catalog 1"


class PriceTable:
    """One cloud's listings. `dated` says when the prices were seen."""

    def __init__(self, text: str) -> None:
        head, _, _ = text.partition("\n")
        self._lines = text[len(head) :]  # every line with a line break before it
        form, self.dated, regions = head.split("\t")
        if form != _FORMAT:
            raise ConfigError("the price catalog has a form that this version does not know")
        self.regions = tuple(regions.split())

    def find(self, name: str) -> InstanceType | None:
        """The listing of an instance type, if it is there."""
        start = self._lines.find(f"\n{name}\t") if name else -1
        if start < 0:
            return None
        line, _, _ = self._lines[start + 1 :].partition("\n")
        return self._listing(line)

    def __iter__(self) -> Iterator[InstanceType]:
        return (self._listing(line) for line in self._lines.split("\n") if line)

    def _listing(self, line: str) -> InstanceType:
        name, vcpus, memory, accelerator, count, partial, *cells = line.split("\t")
        prices = {r: _price(c) for r, c in zip(self.regions, cells, strict=False) if c}
        return InstanceType(
            name=name,
            vcpus=float(vcpus),
            memory_gib=float(memory),
            accelerator=accelerator,
            accelerators=float(count or 0),
            partial=partial == "partial",
            prices=prices,
        )


@cache
def load_price_table(cloud: Cloud) -> PriceTable:
    """The listings of a cloud, read once."""
    return PriceTable((Path(__file__).parent / f"{cloud}.tsv").read_text("utf-8"))


def to_text(listings: Iterable[InstanceType], dated: str) -> str:
    """The file for these listings, in an order of their names."""
    listings = sorted(listings, key=lambda entry: entry.name)
    regions = sorted({region for entry in listings for region in entry.prices or {}})
    lines = ["\t".join((_FORMAT, dated, " ".join(regions)))]
    lines += [_line(entry, regions) for entry in listings]
    return "\n".join(lines) + "\n"


def _line(entry: InstanceType, regions: Sequence[str]) -> str:
    prices = entry.prices or {}
    cells = [
        entry.name,
        f"{entry.vcpus:g}",
        f"{round(entry.memory_gib, 3):g}",
        entry.accelerator,
        f"{entry.accelerators:g}" if entry.accelerators else "",
        "partial" if entry.partial else "",
        *(_cell(prices.get(region, Price())) for region in regions),
    ]
    return "\t".join(cells).rstrip("\t")


def _cell(price: Price) -> str:
    on_demand, spot = (f"{p:.5g}" if p is not None else "" for p in (price.on_demand, price.spot))
    return f"{on_demand}/{spot}" if spot else on_demand


def _price(cell: str) -> Price:
    on_demand, _, spot = cell.partition("/")
    return Price(float(on_demand) if on_demand else None, float(spot) if spot else None)
