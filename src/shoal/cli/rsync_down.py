"""`shoal rsync-down`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shoal.cli.cluster_options import cluster_ref_options, complete_cluster, split_paths
from shoal.cli.exec_options import run_env_option
from shoal.cli.run import output_options, run

if TYPE_CHECKING:
    from shoal.cluster.handle import RunEnv
    from shoal.ops.cluster_lookup import ClusterRef


@click.command("rsync-down")
@click.argument(
    "arguments", nargs=-1, metavar="[CLUSTER] [SOURCE TARGET]", shell_complete=complete_cluster
)
@run_env_option
@cluster_ref_options
@output_options
def command(
    arguments: tuple[str, ...], ref: ClusterRef, run_env: RunEnv, json: bool, verbose: int
) -> None:
    """Copy files from a cluster's head to this machine.

    SOURCE is a path on the head, relative to the home directory; TARGET is a local path. As with
    rsync, the directory SOURCE is copied into TARGET; with a trailing slash, only its contents
    are. Without paths, the cluster's file_mounts are copied back.
    """
    from shoal.ops import cluster_lookup, rsync_transfer
    from shoal.ops.context import Context

    ref, paths = split_paths(arguments, ref)

    async def operation(ctx: Context) -> None:
        spec = await cluster_lookup.resolve(ctx, ref)
        if paths is None:
            await rsync_transfer.download_mounts(ctx, spec, run_env=run_env)
        else:
            await rsync_transfer.download(ctx, spec, *paths, run_env=run_env)

    run(operation, json=json, verbose=verbose)
