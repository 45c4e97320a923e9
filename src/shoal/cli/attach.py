"""`shoal attach`"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from shoal.cli.cluster_options import cluster_argument, cluster_ref_options
from shoal.cli.exec_options import (
    multiplexer_options,
    no_cache_option,
    port_forward_option,
    run_env_option,
    start_option,
)
from shoal.cli.run import has_terminal, run, verbose_option

if TYPE_CHECKING:
    from shoal.cluster.handle import RunEnv
    from shoal.ops.cluster_lookup import ClusterRef
    from shoal.ops.multiplexer import Multiplexer
    from shoal.remote.runner import PortForward


@click.command("attach")
@cluster_argument
@start_option
@multiplexer_options
@click.option("-N", "--new", is_flag=True, help="Start a new screen or tmux session.")
@port_forward_option
@click.option("--node-ip", metavar="NODE", help="Address or name of a node. Default: the head.")
@run_env_option
@no_cache_option
@cluster_ref_options
@verbose_option
def command(
    ref: ClusterRef,
    start: bool,
    multiplexer: Multiplexer | None,
    new: bool,
    forwards: tuple[PortForward, ...],
    node_ip: str | None,
    run_env: RunEnv,
    verbose: int,
) -> None:
    """Open a shell on a cluster's head.

    `ray` and `ray.init()` find the cluster in it. CLUSTER is a YAML file or the name of a cluster.
    Default: the only cluster that is up.
    """
    from shoal.ops import cluster_lookup
    from shoal.ops.attach import ShellOptions, attach
    from shoal.ops.context import Context
    from shoal.ops.ephemeral_cluster import ephemeral_cluster

    if new and multiplexer is None:
        raise click.UsageError("--new requires --screen or --tmux.")
    options = ShellOptions(multiplexer, new)

    async def operation(ctx: Context) -> int:
        resolve = cluster_lookup.resolve_or_default if start else cluster_lookup.resolve
        spec = await resolve(ctx, ref)
        async with ephemeral_cluster(ctx, spec, start=start, stop=False):
            return await attach(
                ctx,
                spec,
                options,
                tty=has_terminal(),
                node=node_ip,
                forwards=forwards,
                run_env=run_env,
            )

    sys.exit(run(operation, verbose=verbose, resumable=False))
