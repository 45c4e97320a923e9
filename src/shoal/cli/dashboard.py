"""`shoal dashboard`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shoal.cli.cluster_options import cluster_argument, cluster_ref_options
from shoal.cli.exec_options import no_cache_option
from shoal.cli.run import follow, output_options

if TYPE_CHECKING:
    from shoal.ops.cluster_lookup import ClusterRef


@click.command("dashboard")
@cluster_argument
@click.option(
    "-p",
    "--port",
    type=click.IntRange(1, 65535),
    help="The port here. Without it: 8265, or the next one that is free.",
)
@click.option(
    "--remote-port", type=click.IntRange(1, 65535), help="The dashboard's port on the head."
)
@click.option("--open/--no-open", "browser", default=False, help="Open it in a browser, too.")
@no_cache_option
@cluster_ref_options
@output_options
def command(
    ref: ClusterRef,
    port: int | None,
    remote_port: int | None,
    browser: bool,
    json: bool,
    verbose: bool,
) -> None:  # fmt: skip
    """Show a cluster's dashboard here, until Ctrl-C.

    The address that is printed logs your browser in, so keep it to yourself. It works as long as
    this command runs.
    """
    import webbrowser

    from shoal.ops import cluster_lookup, dashboard
    from shoal.ops.context import Context

    def opened(url: str) -> None:
        if browser:
            webbrowser.open(url)

    async def operation(ctx: Context) -> None:
        spec = await cluster_lookup.resolve(ctx, ref)
        await dashboard.show(ctx, spec, port=port, remote_port=remote_port, opened=opened)

    follow(operation, json=json, verbose=verbose)
