"""`shoal stop`"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from shoal.cli.session import output_options, run, yes_option
from shoal.cli.which import cluster_argument, which_cluster

if TYPE_CHECKING:
    from shoal.ops.target import Wanted


@click.command("stop")
@cluster_argument
@yes_option
@which_cluster
@output_options
def command(wanted: Wanted, yes: bool, json: bool, verbose: bool) -> None:
    """End Ray on a cluster whose machines stay.

    What was set up on the machines stays as well, so `shoal start` is quick. Machines of a cloud
    go on costing money; `shoal down` ends those.
    """
    from shoal.ops import services, target
    from shoal.ops.context import Context

    async def operation(ctx: Context) -> bool:
        return await services.stop(ctx, await target.resolve(ctx, wanted)) is not None

    if not run(operation, json=json, verbose=verbose, yes=yes):
        sys.exit(1)
