"""The price table of one cloud: a text file with one line per instance type.

A lookup only parses the line of its instance type. The table is text so that the diff of a refresh
is readable; the package compresses it.
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
    """The instance types of one cloud. `dated` is the month in which the prices were collected."""

    def __init__(self, text: str) -> None:
        header, _, _ = text.partition("\n")
        self._lines = text[len(header) :]  # every line with a line break before it
        file_format, self.dated, regions = header.split("\t")
        if file_format != _FORMAT:
            raise ConfigError(
                "unknown price table format", why=f"expected {_FORMAT!r}, not {file_format!r}"
            )
        self.regions = tuple(regions.split())

    def find(self, name: str) -> InstanceType | None:
        """The instance type with this name, if the table has it."""
        start = self._lines.find(f"\n{name}\t") if name else -1
        if start < 0:
            return None
        line, _, _ = self._lines[start + 1 :].partition("\n")
        return self._parse(line)

    def __iter__(self) -> Iterator[InstanceType]:
        return (self._parse(line) for line in self._lines.split("\n") if line)

    def _parse(self, line: str) -> InstanceType:
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
    """The price table of a cloud. It is read once."""
    return PriceTable((Path(__file__).parent / f"{cloud}.tsv").read_text("utf-8"))


def to_text(instance_types: Iterable[InstanceType], dated: str) -> str:
    """The text of a table with these instance types, sorted by name."""
    instance_types = sorted(instance_types, key=lambda entry: entry.name)
    regions = sorted({region for entry in instance_types for region in entry.prices or {}})
    lines = ["\t".join((_FORMAT, dated, " ".join(regions)))]
    lines += [_line(entry, regions) for entry in instance_types]
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
