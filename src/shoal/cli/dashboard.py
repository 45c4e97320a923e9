"""`shoal dashboard`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shoal.cli.cluster_options import cluster_argument, cluster_ref_options
from shoal.cli.exec_options import no_cache_option
from shoal.cli.run import output_options, run_until_interrupted

if TYPE_CHECKING:
    from shoal.ops.cluster_lookup import ClusterRef


@click.command("dashboard")
@cluster_argument
@click.option(
    "-p",
    "--port",
    type=click.IntRange(1, 65535),
    help="Local port. Default: 8265, or the next free one.",
)
@click.option(
    "--remote-port", type=click.IntRange(1, 65535), help="Port of the dashboard on the head."
)
@click.option("--open/--no-open", "browser", default=False, help="Open it in a browser.")
@no_cache_option
@cluster_ref_options
@output_options
def command(
    ref: ClusterRef,
    port: int | None,
    remote_port: int | None,
    browser: bool,
    json: bool,
    verbose: int,
) -> None:  # fmt: skip
    """Forward a cluster's Ray dashboard to this machine, until Ctrl-C.

    The printed URL logs your browser in, so keep it secret. It works while this command runs.
    """
    import webbrowser

    from shoal.ops import cluster_lookup, dashboard
    from shoal.ops.context import Context

    def on_open(url: str) -> None:
        if browser:
            webbrowser.open(url)

    async def operation(ctx: Context) -> None:
        spec = await cluster_lookup.resolve(ctx, ref)
        await dashboard.show(ctx, spec, port=port, remote_port=remote_port, on_open=on_open)

    run_until_interrupted(operation, json=json, verbose=verbose)
