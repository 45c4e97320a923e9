"""`shoal prices`"""

from __future__ import annotations

import json as jsonlib
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from shoal.cli.formatting import columns, number
from shoal.cli.run import json_option, run

if TYPE_CHECKING:
    from shoal.ops.context import Context
    from shoal.ops.prices import PriceLine


@click.command("prices")
@click.argument("name", required=False, default="")
@click.option("--cloud", type=click.Choice(["aws", "gcp"]), help="Only this cloud.")
@click.option("--region", multiple=True, help="Only this region. Can be repeated.")
@click.option("--cpus", type=click.FloatRange(min=0), default=0, help="Minimum number of vCPUs.")
@click.option("--memory", type=click.FloatRange(min=0), default=0, help="Minimum memory in GiB.")
@click.option("--gpus", type=click.IntRange(min=0), default=0, help="Minimum number of GPUs.")
@click.option("--accelerator", default="", help="Only with this accelerator, e.g. L4 or A100.")
@click.option("--spot", is_flag=True, help="Sort by the spot price.")
@click.option("--all-regions", is_flag=True, help="Show all regions, not only the cheapest.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="Maximum number of lines; 0 for all.",
)
@json_option
def command(
    name: str,
    cloud: str | None,
    region: tuple[str, ...],
    cpus: float,
    memory: float,
    gpus: int,
    accelerator: str,
    spot: bool,
    all_regions: bool,
    limit: int,
    json: bool,
) -> None:
    """Show the prices of instance types, cheapest first.

    NAME is a prefix of the instance type. Prices are US dollars per hour from the shipped catalog:
    good enough to compare instance types, not for accounting.
    """
    from shoal.ops.prices import PriceQuery, cheapest_regions, prices

    async def operation(ctx: Context) -> list[PriceLine]:
        clouds = {} if cloud is None else {"clouds": (cloud,)}
        query = PriceQuery(
            regions=region, cpus=cpus, memory_gib=memory, gpus=gpus, accelerator=accelerator,
            name=name, spot=spot, **clouds,  # type: ignore[arg-type]
        )  # fmt: skip
        lines = prices(query)
        return lines if all_regions else cheapest_regions(lines)

    lines = run(operation, json=json)
    shown = lines[:limit] if limit else lines
    if json:
        click.echo(jsonlib.dumps([asdict(line) for line in shown]))
        return
    for text in _lines(shown, len(lines)):
        click.echo(text)


def _lines(shown: list[PriceLine], total: int) -> list[str]:
    if not shown:
        return ["no instance type in the catalog matches"]
    header = ("instance type", "cloud", "region", "vCPU", "GiB", "accelerator", "$/h", "spot $/h")
    rows = [
        (
            line.name,
            line.cloud,
            line.region,
            number(line.vcpus),
            number(line.memory_gib),
            f"{line.accelerators:g} x {line.accelerator}" if line.accelerator else "",
            _price(line.on_demand, line.partial),
            _price(line.spot, line.partial),
        )
        for line in shown
    ]
    notes = [f"{len(shown)} of {total}; prices from {', '.join(sorted({x.dated for x in shown}))}"]
    if any(line.partial for line in shown):
        notes.append("> without accelerators: the catalog has no price for them")
    return [*columns(header, rows), *(click.style(note, dim=True) for note in notes)]


def _price(price: float | None, partial: bool) -> str:
    if price is None:
        return "-"
    return f"{'> ' if partial else ''}{price:.4f}"
