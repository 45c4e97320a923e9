"""`shoal get-head-ip`"""

from __future__ import annotations

import json as jsonlib
from typing import TYPE_CHECKING

import click

from shoal.cli.cluster_options import cluster_argument, cluster_ref_options
from shoal.cli.run import output_options, run

if TYPE_CHECKING:
    from shoal.ops.cluster_lookup import ClusterRef


@click.command("get-head-ip")
@cluster_argument
@cluster_ref_options
@output_options
def command(ref: ClusterRef, json: bool, verbose: int) -> None:
    """Print the IP address of a cluster's head: the public one, if it has one."""
    from shoal.cluster.handle import ClusterHandle
    from shoal.ops import cluster_lookup
    from shoal.ops.context import Context

    async def operation(ctx: Context) -> str:
        spec = await cluster_lookup.resolve(ctx, ref)
        return await ClusterHandle.of(ctx, spec).head_address()

    address = run(operation, json=json, verbose=verbose, result_only=True)
    click.echo(jsonlib.dumps({"head_ip": address}) if json else address)
