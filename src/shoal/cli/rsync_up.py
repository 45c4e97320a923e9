"""`shoal rsync-up`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shoal.cli.cluster_options import cluster_ref_options, complete_cluster, split_paths
from shoal.cli.exec_options import run_env_option
from shoal.cli.run import output_options, run

if TYPE_CHECKING:
    from shoal.cluster.handle import RunEnv
    from shoal.ops.cluster_lookup import ClusterRef


@click.command("rsync-up")
@click.argument(
    "arguments", nargs=-1, metavar="[CLUSTER] [SOURCE TARGET]", shell_complete=complete_cluster
)
@click.option("-A", "--all-nodes", is_flag=True, help="Copy to all nodes, not only the head.")
@run_env_option
@cluster_ref_options
@output_options
def command(
    arguments: tuple[str, ...],
    ref: ClusterRef,
    all_nodes: bool,
    run_env: RunEnv,
    json: bool,
    verbose: int,
) -> None:
    """Copy files to a cluster.

    SOURCE is a local path, TARGET a path on the nodes, relative to the home directory. As with
    rsync, the directory SOURCE is copied into TARGET; with a trailing slash, only its contents
    are. Without paths, the cluster's file_mounts are copied.
    """
    from shoal.ops import cluster_lookup, rsync_transfer
    from shoal.ops.context import Context

    ref, paths = split_paths(arguments, ref)

    async def operation(ctx: Context) -> None:
        spec = await cluster_lookup.resolve(ctx, ref)
        if paths is None:
            await rsync_transfer.upload_mounts(ctx, spec, all_nodes=all_nodes, run_env=run_env)
        else:
            await rsync_transfer.upload(ctx, spec, *paths, all_nodes=all_nodes, run_env=run_env)

    run(operation, json=json, verbose=verbose)
