"""`shoal rsync-up`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shoal.cli.cluster_options import cluster_ref_options, complete_cluster, paths_of
from shoal.cli.exec_options import run_env_option
from shoal.cli.run import output_options, run

if TYPE_CHECKING:
    from shoal.cluster.handle import RunEnv
    from shoal.ops.cluster_lookup import ClusterRef


@click.command("rsync-up")
@click.argument(
    "words", nargs=-1, metavar="[CLUSTER] [SOURCE TARGET]", shell_complete=complete_cluster
)
@click.option("-A", "--all-nodes", is_flag=True, help="To the workers, too, not the head alone.")
@run_env_option
@cluster_ref_options
@output_options
def command(
    words: tuple[str, ...],
    ref: ClusterRef,
    all_nodes: bool,
    run_env: RunEnv,
    json: bool,
    verbose: bool,
) -> None:
    """Copy files to a cluster.

    SOURCE is a path here, TARGET one on the nodes, below the home directory unless it starts with
    a slash. As with rsync, a directory goes into TARGET, or with a slash at its end only what is
    in it does. Without both, the cluster's file mounts are copied.
    """
    from shoal.ops import cluster_lookup, rsync_transfer
    from shoal.ops.context import Context

    ref, paths = paths_of(words, ref)

    async def operation(ctx: Context) -> None:
        spec = await cluster_lookup.resolve(ctx, ref)
        if paths is None:
            await rsync_transfer.upload_mounts(ctx, spec, all_nodes=all_nodes, run_env=run_env)
        else:
            await rsync_transfer.upload(ctx, spec, *paths, all_nodes=all_nodes, run_env=run_env)

    run(operation, json=json, verbose=verbose)
