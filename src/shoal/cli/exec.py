"""`shoal exec`"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from shoal.cli.cluster_options import cluster_ref_options, complete_cluster
from shoal.cli.exec_options import exec_options
from shoal.cli.run import output_options, run

if TYPE_CHECKING:
    from shoal.ops.cluster_lookup import ClusterRef
    from shoal.ops.execute import ExecOptions


@click.command("exec")
@click.argument(
    "arguments",
    nargs=-1,
    required=True,
    metavar="[CLUSTER] COMMAND",
    shell_complete=complete_cluster,
)
@exec_options
@cluster_ref_options
@output_options
def command(
    arguments: tuple[str, ...], ref: ClusterRef, options: ExecOptions, json: bool, verbose: int
) -> None:  # fmt: skip
    """Run a command on a cluster's head, and exit with its exit code.

    `ray.init()` finds the cluster in it. COMMAND is one argument: quote it. CLUSTER is a YAML file
    or the name of a cluster. Default: the only cluster that is up. On an embedded cluster, the
    command runs in the current directory.

    \b
    shoal exec cluster.yaml 'python train.py' --start --stop
    shoal exec cluster.yaml 'jupyter notebook --port 8899' -p 8899
    """
    from shoal.ops import cluster_lookup
    from shoal.ops.context import Context
    from shoal.ops.execute import execute

    if len(arguments) > 2:
        raise click.UsageError(
            "Too many arguments. Quote the command: shoal exec CLUSTER 'python script.py --flag'"
        )
    if len(arguments) == 1 and cluster_lookup.looks_like_a_file(arguments[0]):
        raise click.UsageError(f"No command to run on {arguments[0]}.")
    if len(arguments) == 2:
        if ref.source is not None:
            raise click.UsageError("Use CLUSTER or --nodes, not both.")
        ref = replace(ref, source=arguments[0])

    async def operation(ctx: Context) -> int:
        resolve = cluster_lookup.resolve_or_default if options.start else cluster_lookup.resolve
        return await execute(ctx, await resolve(ctx, ref), arguments[-1], options)

    sys.exit(run(operation, json=json, verbose=verbose, resumable=False))
