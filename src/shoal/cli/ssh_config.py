"""`shoal ssh-config`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from shoal.cli.cluster_options import cluster_argument, cluster_ref_options
from shoal.cli.run import run, verbose_option

if TYPE_CHECKING:
    from shoal.ops.cluster_lookup import ClusterRef


@click.command("ssh-config")
@cluster_argument
@click.option("--write", is_flag=True, help="Add it to ~/.ssh/config; `shoal down` removes it.")
@cluster_ref_options
@verbose_option
def command(ref: ClusterRef, write: bool, verbose: int) -> None:
    """Print or install SSH configuration for a cluster's nodes.

    With it in ~/.ssh/config, `ssh CLUSTER` and `ssh CLUSTER-worker-1` work, and so do scp, rsync
    and editors.
    """
    from shoal.ops import cluster_lookup, ssh_config
    from shoal.ops.context import Context

    async def operation(ctx: Context) -> str:
        spec = await cluster_lookup.resolve(ctx, ref)
        if write:
            file = await ssh_config.install(ctx, spec, Path.home())
            return f"wrote {file}; connect with: ssh {spec.cluster_name}"
        return (await ssh_config.render(ctx, spec)).rstrip("\n")

    click.echo(run(operation, verbose=verbose))
