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
@click.option("--all", "all_clusters", is_flag=True, help="Terminate all known clusters.")
@click.option("--workers-only", is_flag=True, help="Keep the head.")
@click.option(
    "--keep-min-workers", is_flag=True, help="Keep the head and min_workers of each type."
)
@click.option("--images", is_flag=True, help="Also delete the images baked for the cluster.")
@yes_option
@cluster_ref_options
@output_options
def command(
    ref: ClusterRef,
    all_clusters: bool,
    workers_only: bool,
    keep_min_workers: bool,
    images: bool,
    yes: bool,
    json: bool,
    verbose: int,
) -> None:
    """Terminate a cluster.

    CLUSTER is a YAML file or the name of a cluster. Default: the only cluster that is up.
    """
    from shoal.ops import cluster_lookup
    from shoal.ops.context import Context
    from shoal.ops.down import Keep, down, down_all
    from shoal.ops.images import remove_images

    if all_clusters and not ref.is_empty:
        raise click.UsageError("Use CLUSTER or --all, not both.")
    if images and (all_clusters or workers_only or keep_min_workers):
        raise click.UsageError("--images is for one cluster that is terminated.")
    keep = Keep(head=workers_only, min_workers=keep_min_workers)

    async def operation(ctx: Context) -> bool:
        if all_clusters:
            results = await down_all(ctx, keep)
        else:
            spec = await cluster_lookup.resolve(ctx, ref)
            results = [await down(ctx, spec, keep, keeps_images=not images)]
            if images and results[0].terminated is not None:
                return await remove_images(ctx, spec)
        return all(result.terminated is not None for result in results)

    if not run(operation, json=json, verbose=verbose, yes=yes):
        sys.exit(1)
