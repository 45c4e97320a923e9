"""`shoal logs`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shoal.cli.cluster_options import cluster_ref_options, node_argument, split_node
from shoal.cli.run import run, verbose_option

if TYPE_CHECKING:
    from shoal.ops.cluster_lookup import ClusterRef
    from shoal.ops.logs import LogKind


@click.command("logs")
@node_argument
@click.option(
    "--only",
    "kinds",
    type=click.Choice(["setup", "ray", "controller"]),
    multiple=True,
    help="Only this log. Can be repeated.",
)
@click.option(
    "--lines",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    help="How many lines of each log.",
)
@cluster_ref_options
@verbose_option
def command(
    arguments: tuple[str, ...],
    ref: ClusterRef,
    kinds: tuple[LogKind, ...],
    lines: int,
    verbose: int,
) -> None:
    """Show the logs of the head, or of another node.

    The output of the node's setup, the logs of Ray's daemons, and on the head that of the
    controller. A node that could not be set up and is gone has a log too.
    """
    from shoal.ops import cluster_lookup
    from shoal.ops.context import Context
    from shoal.ops.logs import ALL_KINDS, read_logs

    ref, node = split_node(arguments, ref)

    async def operation(ctx: Context) -> list[str]:
        spec = await cluster_lookup.resolve(ctx, ref)
        return await read_logs(ctx, spec, node, kinds=kinds or ALL_KINDS, lines=lines)

    for line in run(operation, verbose=verbose):
        click.echo(line)
