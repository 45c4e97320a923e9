"""`shoal shell`"""

from __future__ import annotations

import code
import contextlib
import sys
from collections.abc import Iterator
from types import CodeType
from typing import TYPE_CHECKING, Any

import click

from shoal.cli.render import renderer
from shoal.core.errors import ShoalError

if TYPE_CHECKING:
    from shoal.core.events import Event

_BANNER = """\
{cluster!r}
  cluster.install_ray()                                              put Ray on every machine
  cluster.start_ray("~/my_code", num_workers_per_node=10)            start it, with your code
  cluster.restart_workers("~/my_code", num_workers_per_node=10)      the same with other code
  cluster.stop_ray()                                                 end it
  cluster.update_ray()                                               move to a newer Ray
  cluster.status(), cluster.exec("..."), cluster.down()              help(cluster) tells more
"""


@click.command("shell")
@click.option(
    "--nodes", metavar="FILE", required=True, type=click.Path(),
    help="A list of your own machines, one address a line, the head first.",
)  # fmt: skip
@click.option("--key-file", metavar="FILE", type=click.Path(), help="The private key for them.")
@click.option("--username", metavar="USER", help="Who logs in to them.")
@click.option(
    "--installation-directory", metavar="DIR", default="~/", show_default=True,
    help="Where Ray goes on each of them.",
)  # fmt: skip
@click.option("-n", "--cluster-name", metavar="NAME", help="Use this name, not the file's.")
def command(
    nodes: str,
    key_file: str | None,
    username: str | None,
    installation_directory: str,
    cluster_name: str | None,
) -> None:
    """Open a Python prompt with a cluster of your own machines.

    \b
    shoal shell --nodes nodes.txt --key-file key.pem --username ubuntu \\
                --installation-directory /home/ubuntu/
    """
    from shoal.interactive_cluster import InteractiveCluster

    screen = _Screen()
    try:
        cluster = InteractiveCluster(
            nodes,
            key_file=key_file,
            username=username,
            installation_directory=installation_directory,
            cluster_name=cluster_name,
            on_event=screen.event,
        )
    except ShoalError as error:
        screen.error(error)
        sys.exit(error.exit_code)
    names: dict[str, Any] = {"cluster": cluster}
    _complete(names)
    _Console(names, screen).interact(banner=_BANNER.format(cluster=cluster), exitmsg="")


class _Screen:
    """Shows what happens, anew for each statement."""

    def __init__(self) -> None:
        self._renderer = renderer(json=False, verbose=True)

    @contextlib.contextmanager
    def statement(self) -> Iterator[None]:
        self._renderer = renderer(json=False, verbose=True)
        with self._renderer:
            yield

    def event(self, event: Event) -> None:
        self._renderer.event(event)

    def error(self, error: ShoalError) -> None:
        self._renderer.error(error)


class _Console(code.InteractiveConsole):
    """Python's own prompt, but for how an error of ours reads."""

    def __init__(self, names: dict[str, Any], screen: _Screen) -> None:
        super().__init__(names)
        self._screen = screen

    def runcode(self, code: CodeType) -> None:
        with self._screen.statement():
            super().runcode(code)

    def showtraceback(self) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, KeyboardInterrupt):
            again = "the same call again starts over; cluster.down() gives the machines back"
            error = ShoalError("interrupted", why="what was begun is still there", fix=again)
        if isinstance(error, ShoalError):
            self._screen.error(error)
        else:
            super().showtraceback()


def _complete(names: dict[str, Any]) -> None:
    """Let the tab key complete, where Python was built with readline."""
    try:
        import readline
        import rlcompleter
    except ImportError:
        return
    readline.set_completer(rlcompleter.Completer(names).complete)
    readline.parse_and_bind("tab: complete")
