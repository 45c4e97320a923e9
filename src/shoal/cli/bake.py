"""`shoal bake`"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from shoal.cli.cluster_options import cluster_argument, cluster_ref_options
from shoal.cli.run import output_options, run, yes_option

if TYPE_CHECKING:
    from shoal.ops.cluster_lookup import ClusterRef


@click.command("bake")
@cluster_argument
@click.option("--prune", is_flag=True, help="Only delete images that the file no longer asks for.")
@yes_option
@cluster_ref_options
@output_options
def command(ref: ClusterRef, prune: bool, yes: bool, json: bool, verbose: int) -> None:
    """Make images from which the nodes of a cluster start without setup, on AWS.

    Brings up one node of each type that has no image yet, waits until its image is complete, and
    terminates it. With `shoal: {bake: true}` in the file, `up` and the controller start nodes from
    these images, and make those that are missing.
    """
    from shoal.ops import cluster_lookup
    from shoal.ops.bake import bake
    from shoal.ops.context import Context
    from shoal.ops.images import prune_images

    async def operation(ctx: Context) -> bool:
        located = await cluster_lookup.locate_or_default(ctx, ref)
        if prune:
            return await prune_images(ctx, located.spec)
        return await bake(ctx, located.spec, located.source_of)

    if not run(operation, json=json, verbose=verbose, yes=yes):
        sys.exit(1)
