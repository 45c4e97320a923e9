"""`shoal start`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shoal.cli.session import output_options, run
from shoal.cli.which import cluster_argument, which_cluster

if TYPE_CHECKING:
    from shoal.ops.target import Wanted


@click.command("start")
@cluster_argument
@which_cluster
@output_options
def command(wanted: Wanted, json: bool, verbose: bool) -> None:
    """Start Ray again on a cluster that was stopped.

    Ray starts on the machines where it does not run; nothing is set up again, and nothing that
    runs is touched. `shoal up` does that and also applies changes of the cluster's file.
    """
    from shoal.ops import services, target
    from shoal.ops.context import Context

    async def operation(ctx: Context) -> None:
        await services.start(ctx, await target.resolve(ctx, wanted))

    run(operation, json=json, verbose=verbose)
