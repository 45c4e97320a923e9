"""`shoal cost`"""

from __future__ import annotations

import json as jsonlib
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING

import click

from shoal.cli.cluster_options import cluster_argument, cluster_ref_options
from shoal.cli.formatting import columns
from shoal.cli.run import output_options, run
from shoal.core.money import dollars, per_hour

if TYPE_CHECKING:
    from shoal.ops.cluster_lookup import ClusterRef
    from shoal.ops.cost import Cost


@click.command("cost")
@cluster_argument
@cluster_ref_options
@output_options
def command(ref: ClusterRef, json: bool, verbose: int) -> None:
    """Show what a cluster has cost so far, by node type and market.

    Also works, by name, for a cluster that no longer exists. Counts instances, with
    their disks and public addresses while they run, at list prices; traffic and discounts are not
    included.
    """
    from shoal.ops.context import Context
    from shoal.ops.cost import cost

    async def operation(ctx: Context) -> Cost:
        return await cost(ctx, ref)

    result = run(operation, json=json, verbose=verbose, result_only=True)
    if json:
        click.echo(jsonlib.dumps(asdict(result)))
        return
    for line in _lines(result):
        click.echo(line)


def _lines(result: Cost) -> list[str]:
    name = click.style(result.cluster, bold=True)
    if not result.rows:
        return [f"{name}: no usage recorded"]
    rows = [
        (
            row.node_type,
            row.market,
            str(row.instances),
            f"{row.hours:.2f}",
            "no price" if row.cost is None else dollars(row.cost),
        )
        for row in result.rows
    ]
    total = click.style(dollars(result.cost), bold=True)
    at_least = "" if result.complete else "at least "
    since = datetime.fromtimestamp(result.since or 0.0).strftime("%Y-%m-%d %H:%M")
    now = f"; {per_hour(result.per_hour)} now" if result.per_hour else ""
    return [
        *columns(("node type", "market", "instances", "hours", "cost"), rows),
        f"{name} has cost {at_least}{total} since {since}{now}",
    ]
