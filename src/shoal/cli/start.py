"""`shoal start`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shoal.cli.cluster_options import cluster_argument, cluster_ref_options
from shoal.cli.run import output_options, run, yes_option

if TYPE_CHECKING:
    from shoal.ops.cluster_lookup import ClusterRef


@click.command("start")
@cluster_argument
@yes_option
@cluster_ref_options
@output_options
def command(ref: ClusterRef, yes: bool, json: bool, verbose: int) -> None:
    """Start a stopped cluster.

    Starts stopped instances, and Ray on the nodes where it is not running, without repeating the
    setup. Running nodes are not changed. To also apply changes of the file, use `shoal up`.
    """
    from shoal.ops import cluster_lookup, stop_start
    from shoal.ops.context import Context

    async def operation(ctx: Context) -> None:
        await stop_start.start(ctx, await cluster_lookup.resolve(ctx, ref))

    run(operation, json=json, verbose=verbose, yes=yes)
