"""`shoal cost`"""

from __future__ import annotations

import json as jsonlib
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING

import click

from shoal.cli.cluster_options import cluster_argument, cluster_ref_options
from shoal.cli.formatting import columns
from shoal.cli.run import run

if TYPE_CHECKING:
    from shoal.ops.cluster_lookup import ClusterRef
    from shoal.ops.cost import Cost


@click.command("cost")
@cluster_argument
@click.option("--json", "json", is_flag=True, help="Print for a program: JSON only.")
@cluster_ref_options
def command(ref: ClusterRef, json: bool) -> None:
    """Show what a cluster has cost so far, by node type and market.

    Also of a cluster that is gone, by its name. Machines only, at list prices: disks, traffic and
    discounts are on the provider's bill.
    """
    from shoal.ops.context import Context
    from shoal.ops.cost import cost

    async def operation(ctx: Context) -> Cost:
        return await cost(ctx, ref)

    found = run(operation, json=json, answers=True)
    if json:
        click.echo(jsonlib.dumps(asdict(found)))
        return
    for line in _lines(found):
        click.echo(line)


def _lines(found: Cost) -> list[str]:
    name = click.style(found.cluster, bold=True)
    if not found.rows:
        return [f"{name}: no usage recorded"]
    rows = [
        (
            row.node_type,
            row.market,
            str(row.instances),
            f"{row.hours:.2f}",
            "no price" if row.cost is None else f"${row.cost:.2f}",
        )
        for row in found.rows
    ]
    total = click.style(f"${found.cost:.2f}", bold=True)
    least = "" if found.complete else "at least "
    since = datetime.fromtimestamp(found.since or 0.0).strftime("%Y-%m-%d %H:%M")
    now = f"; ${found.per_hour:.4g}/h now" if found.per_hour else ""
    return [
        *columns(("node type", "market", "instances", "hours", "cost"), rows),
        f"{name} has cost {least}{total} since {since}{now}",
    ]
