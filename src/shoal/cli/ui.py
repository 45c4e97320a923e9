"""`shoal ui`"""

from __future__ import annotations

from importlib.util import find_spec

import click

from shoal.cli.run import run_until_interrupted, verbose_option


@click.command("ui")
@click.option(
    "-p", "--port", type=click.IntRange(0, 65535), default=0,
    help="Port of the page on this machine. Default: any free one.",
)  # fmt: skip
@click.option("--open/--no-open", "browser", default=True, help="Open the page in a browser.")
@click.option("--read-only", is_flag=True, help="Only show: refuse every action.")
@verbose_option
def command(port: int, browser: bool, read_only: bool, verbose: int) -> None:
    """Show all clusters on a page in the browser, until Ctrl-C.

    The page listens on this machine only. The printed URL contains a token that is new with every
    start, so keep it secret.
    """
    import asyncio
    import webbrowser

    from shoal.core.errors import ConfigError
    from shoal.ops.context import Context

    async def operation(ctx: Context) -> None:
        if find_spec("aiohttp") is None:
            raise ConfigError(
                "the page needs aiohttp",
                why="it is not installed here",
                fix="pip install 'shoal[ui]'",
            )
        from shoal.ui.server import serve

        async with serve(ctx, port=port, read_only=read_only) as url:
            click.echo(f"the page is at {url}")
            click.echo("Ctrl-C ends it; the clusters go on", err=True)
            if browser:
                await asyncio.to_thread(webbrowser.open, url)
            await asyncio.Event().wait()

    run_until_interrupted(operation, verbose=verbose, result_only=True)
