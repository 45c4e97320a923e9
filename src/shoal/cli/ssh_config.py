"""`shoal ssh-config`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from shoal.cli.cluster_options import cluster_argument, cluster_ref_options
from shoal.cli.run import run

if TYPE_CHECKING:
    from shoal.ops.cluster_lookup import ClusterRef


@click.command("ssh-config")
@cluster_argument
@click.option("--write", is_flag=True, help="Add it to ~/.ssh/config, until `shoal down`.")
@cluster_ref_options
def command(ref: ClusterRef, write: bool) -> None:
    """Let plain ssh reach a cluster's machines by name.

    Prints what ~/.ssh/config needs for `ssh CLUSTER` and `ssh CLUSTER-worker-1`, or puts it
    there: then also scp, rsync and editors know the machines.
    """
    from shoal.ops import cluster_lookup, ssh_config
    from shoal.ops.context import Context

    async def operation(ctx: Context) -> str:
        spec = await cluster_lookup.resolve(ctx, ref)
        if write:
            file = await ssh_config.install(ctx, spec, Path.home())
            return f"written to {file}; now: ssh {spec.cluster_name}"
        return (await ssh_config.text(ctx, spec)).rstrip("\n")

    click.echo(run(operation))
