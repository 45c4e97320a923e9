"""`shoal stop`"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from shoal.cli.cluster_options import cluster_argument, cluster_ref_options
from shoal.cli.run import output_options, run, yes_option

if TYPE_CHECKING:
    from shoal.ops.cluster_lookup import ClusterRef


@click.command("stop")
@cluster_argument
@yes_option
@cluster_ref_options
@output_options
def command(ref: ClusterRef, yes: bool, json: bool, verbose: int) -> None:
    """Stop Ray; on AWS also stop the instances.

    `shoal start` starts the cluster again without repeating the setup. Stopped instances keep
    their disks, which are still billed; spot instances cannot be stopped and are terminated.
    `shoal down` terminates everything.
    """
    from shoal.ops import cluster_lookup, stop_start
    from shoal.ops.context import Context

    async def operation(ctx: Context) -> bool:
        return await stop_start.stop(ctx, await cluster_lookup.resolve(ctx, ref)) is not None

    if not run(operation, json=json, verbose=verbose, yes=yes):
        sys.exit(1)
