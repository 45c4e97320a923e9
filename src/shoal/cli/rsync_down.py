"""`shoal rsync-down`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shoal.cli.cluster_options import cluster_ref_options, complete_cluster, paths_of
from shoal.cli.exec_options import run_env_option
from shoal.cli.run import output_options, run

if TYPE_CHECKING:
    from shoal.cluster.handle import RunEnv
    from shoal.ops.cluster_lookup import ClusterRef


@click.command("rsync-down")
@click.argument(
    "words", nargs=-1, metavar="[CLUSTER] [SOURCE TARGET]", shell_complete=complete_cluster
)
@run_env_option
@cluster_ref_options
@output_options
def command(
    words: tuple[str, ...], ref: ClusterRef, run_env: RunEnv, json: bool, verbose: bool
) -> None:
    """Copy files from a cluster's head to this machine.

    SOURCE is a path on the head, below the home directory unless it starts with a slash; TARGET
    is one here. As with rsync, a directory goes into TARGET, or with a slash at its end only what
    is in it does. Without both, the cluster's file mounts are copied back.
    """
    from shoal.ops import cluster_lookup, rsync_transfer
    from shoal.ops.context import Context

    ref, paths = paths_of(words, ref)

    async def operation(ctx: Context) -> None:
        spec = await cluster_lookup.resolve(ctx, ref)
        if paths is None:
            await rsync_transfer.download_mounts(ctx, spec, run_env=run_env)
        else:
            await rsync_transfer.download(ctx, spec, *paths, run_env=run_env)

    run(operation, json=json, verbose=verbose)
