"""`shoal monitor`: Ray's name of `shoal status --watch`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shoal.cli.cluster_options import cluster_argument, cluster_ref_options
from shoal.cli.run import output_options
from shoal.cli.status import every_option, watch_status

if TYPE_CHECKING:
    from shoal.ops.cluster_lookup import ClusterRef


@click.command("monitor")
@cluster_argument
@every_option
@click.option(
    "--lines",
    type=int,
    expose_value=False,
    help="Accepted for compatibility with Ray; has no effect.",
)
@cluster_ref_options
@output_options
def command(ref: ClusterRef, every: float, json: bool, verbose: int) -> None:
    """The same as `shoal status --watch`: repeat it until Ctrl-C."""
    watch_status(ref, every, json=json, verbose=verbose)
