"""`shoal monitor`"""

from __future__ import annotations

import json as jsonlib
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from shoal.cli.cluster_options import cluster_argument, cluster_ref_options
from shoal.cli.run import output_options, run_until_interrupted
from shoal.cli.status import status_lines

if TYPE_CHECKING:
    from shoal.ops.cluster_lookup import ClusterRef
    from shoal.ops.status import ClusterStatus


@click.command("monitor")
@cluster_argument
@click.option(
    "--every",
    type=click.FloatRange(min=0.1),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="Seconds between updates.",
)
@click.option(
    "--lines",
    type=int,
    expose_value=False,
    help="Accepted for compatibility with Ray; has no effect.",
)
@cluster_ref_options
@output_options
def command(ref: ClusterRef, every: float, json: bool, verbose: int) -> None:  # fmt: skip
    """Show the output of `shoal status` repeatedly, until Ctrl-C."""
    from shoal.ops import cluster_lookup
    from shoal.ops.context import Context
    from shoal.ops.status import watch

    def show(status: ClusterStatus) -> None:
        if json:
            click.echo(jsonlib.dumps(asdict(status)))
            return
        if sys.stdout.isatty():
            click.clear()
        for line in status_lines(status):
            click.echo(line)

    async def operation(ctx: Context) -> None:
        await watch(ctx, await cluster_lookup.resolve(ctx, ref), show, every=every)

    run_until_interrupted(operation, json=json, verbose=verbose, result_only=True)
