"""`shoal prices`"""

from __future__ import annotations

import json as jsonlib
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from shoal.cli.formatting import columns, number
from shoal.cli.run import run

if TYPE_CHECKING:
    from shoal.ops.context import Context
    from shoal.ops.prices import PriceLine


@click.command("prices")
@click.argument("name", required=False, default="")
@click.option("--cloud", type=click.Choice(["aws", "gcp"]), help="Only this cloud.")
@click.option("--region", multiple=True, help="Only this region; may be given several times.")
@click.option("--cpus", type=float, default=0, help="At least so many vCPUs.")
@click.option("--memory", type=float, default=0, help="At least so many GiB of memory.")
@click.option("--gpus", type=int, default=0, help="At least so many GPUs.")
@click.option("--accelerator", default="", help="Only with this card, e.g. L4 or A100.")
@click.option("--spot", is_flag=True, help="Sort by the spot price.")
@click.option("--all-regions", is_flag=True, help="Every region, not only the cheapest.")
@click.option("--limit", type=int, default=20, show_default=True, help="So many lines; 0 for all.")
@click.option("--json", "json", is_flag=True, help="Print for a program: JSON only.")
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
    """Show what machines cost, cheapest first.

    NAME is the beginning of an instance type's name. Prices are US dollars an hour, typical for
    their date, for choosing and not for accounting.
    """
    from shoal.ops.prices import PriceQuery, cheapest_of_each, prices

    async def operation(ctx: Context) -> list[PriceLine]:
        clouds = {} if cloud is None else {"clouds": (cloud,)}
        wish = PriceQuery(
            regions=region, cpus=cpus, memory_gib=memory, gpus=gpus, accelerator=accelerator,
            name=name, spot=spot, **clouds,  # type: ignore[arg-type]
        )  # fmt: skip
        found = prices(wish)
        return found if all_regions else cheapest_of_each(found)

    found = run(operation, json=json)
    shown = found[:limit] if limit else found
    if json:
        click.echo(jsonlib.dumps([asdict(line) for line in shown]))
        return
    for text in _lines(shown, len(found)):
        click.echo(text)


def _lines(shown: list[PriceLine], total: int) -> list[str]:
    if not shown:
        return ["no machine in the catalog has all of that"]
    header = ("machine", "cloud", "region", "vCPU", "GiB", "accelerator", "$/h", "spot $/h")
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
    notes = [f"{len(shown)} of {total}; prices of {', '.join(sorted({x.dated for x in shown}))}"]
    if any(line.partial for line in shown):
        notes.append("> without the accelerators, whose price the catalog does not have")
    return [*columns(header, rows), *(click.style(note, dim=True) for note in notes)]


def _price(price: float | None, partial: bool) -> str:
    if price is None:
        return "-"
    return f"{'> ' if partial else ''}{price:.4f}"
