"""`shoal down`"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from shoal.cli.cluster_options import cluster_argument, cluster_ref_options
from shoal.cli.run import output_options, run, yes_option

if TYPE_CHECKING:
    from shoal.ops.cluster_lookup import ClusterRef


@click.command("down")
@cluster_argument
@click.option("--all", "everything", is_flag=True, help="Every cluster known here.")
@click.option("--workers-only", is_flag=True, help="Keep the head.")
@click.option("--keep-min-workers", is_flag=True, help="Keep as many workers as min_workers says.")
@yes_option
@cluster_ref_options
@output_options
def command(
    ref: ClusterRef,
    everything: bool,
    workers_only: bool,
    keep_min_workers: bool,
    yes: bool,
    json: bool,
    verbose: bool,
) -> None:
    """Give a cluster's machines back.

    CLUSTER is a YAML file or the name of a cluster; without it, the only one that is up.
    """
    from shoal.ops import cluster_lookup
    from shoal.ops.context import Context
    from shoal.ops.down import Keep, down, down_all

    if everything and not ref.is_empty:
        raise click.UsageError("Name a cluster or use --all, not both.")
    keep = Keep(head=workers_only, min_workers=keep_min_workers)

    async def operation(ctx: Context) -> bool:
        if everything:
            results = await down_all(ctx, keep)
        else:
            results = [await down(ctx, await cluster_lookup.resolve(ctx, ref), keep)]
        return all(result.ended is not None for result in results)

    if not run(operation, json=json, verbose=verbose, yes=yes):
        sys.exit(1)
