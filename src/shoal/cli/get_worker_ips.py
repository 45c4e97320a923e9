"""`shoal get-worker-ips`"""

from __future__ import annotations

import json as jsonlib
from typing import TYPE_CHECKING

import click

from shoal.cli.cluster_options import cluster_argument, cluster_ref_options
from shoal.cli.run import output_options, run

if TYPE_CHECKING:
    from shoal.ops.cluster_lookup import ClusterRef


@click.command("get-worker-ips")
@cluster_argument
@cluster_ref_options
@output_options
def command(ref: ClusterRef, json: bool, verbose: int) -> None:
    """Print the workers' IP addresses, one per line: the public ones, if they have any."""
    from shoal.cluster.handle import ClusterHandle
    from shoal.ops import cluster_lookup
    from shoal.ops.context import Context

    async def operation(ctx: Context) -> list[str]:
        spec = await cluster_lookup.resolve(ctx, ref)
        return await ClusterHandle.of(ctx, spec).worker_addresses()

    ips = run(operation, json=json, verbose=verbose, result_only=True)
    if json:
        click.echo(jsonlib.dumps({"worker_ips": ips}))
    else:
        for address in ips:
            click.echo(address)
