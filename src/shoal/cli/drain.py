"""`shoal drain`"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from shoal.cli.cluster_options import cluster_ref_options, node_argument, split_node
from shoal.cli.run import output_options, run, yes_option

if TYPE_CHECKING:
    from shoal.ops.cluster_lookup import ClusterRef


@click.command("drain")
@node_argument
@yes_option
@cluster_ref_options
@output_options
def command(
    arguments: tuple[str, ...], ref: ClusterRef, yes: bool, json: bool, verbose: int
) -> None:
    """Let a node finish its work, then terminate it.

    Ray starts no new work on NODE. The controller terminates it when its work is done, and launches
    another one if the cluster needs it. CLUSTER is a YAML file or the name of a cluster. Default:
    the only cluster that is up.
    """
    from shoal.ops import cluster_lookup
    from shoal.ops.context import Context
    from shoal.ops.drain import drain

    ref, node = split_node(arguments, ref)
    if node is None:
        raise click.UsageError("Name the NODE to drain; `shoal status` lists the nodes.")

    async def operation(ctx: Context) -> bool:
        return await drain(ctx, await cluster_lookup.resolve(ctx, ref), node)

    if not run(operation, json=json, verbose=verbose, yes=yes):
        sys.exit(1)
