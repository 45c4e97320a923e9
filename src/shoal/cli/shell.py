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
  cluster.install_ray()                                              install Ray on every machine
  cluster.start_ray("~/my_code", num_workers_per_node=10)            start Ray with your code
  cluster.restart_workers("~/my_code", num_workers_per_node=10)      restart with other code
  cluster.stop_ray()                                                 stop Ray
  cluster.update_ray()                                               install a newer Ray
  cluster.status(), cluster.exec("..."), cluster.down()              see also help(cluster)
"""


@click.command("shell")
@click.option(
    "--nodes", metavar="FILE", required=True, type=click.Path(),
    help="A list of your own machines, one address per line, the head first.",
)  # fmt: skip
@click.option("--key-file", metavar="FILE", type=click.Path(), help="SSH private key.")
@click.option("--username", metavar="USER", help="SSH user.")
@click.option(
    "--installation-directory", metavar="DIR", default="~/", show_default=True,
    help="Where Ray is installed on each machine.",
)  # fmt: skip
@click.option(
    "-n",
    "--cluster-name",
    metavar="NAME",
    help="Override the cluster name, which is the file's name.",
)
def command(
    nodes: str,
    key_file: str | None,
    username: str | None,
    installation_directory: str,
    cluster_name: str | None,
) -> None:
    """Open a Python prompt for a cluster of your own machines.

    \b
    shoal shell --nodes nodes.txt --key-file key.pem --username ubuntu \\
                --installation-directory /home/ubuntu/
    """
    from shoal.api import InteractiveCluster

    output = _Output()
    try:
        cluster = InteractiveCluster(
            nodes,
            key_file=key_file,
            username=username,
            installation_directory=installation_directory,
            cluster_name=cluster_name,
            on_event=output.event,
        )
    except ShoalError as error:
        output.error(error)
        sys.exit(error.exit_code)
    variables: dict[str, Any] = {"cluster": cluster}
    _enable_completion(variables)
    _Console(variables, output).interact(banner=_BANNER.format(cluster=cluster), exitmsg="")


class _Output:
    """Renders events, with a new renderer for each statement."""

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
    """Python's prompt, except that a `ShoalError` is shown without a stack trace."""

    def __init__(self, variables: dict[str, Any], output: _Output) -> None:
        super().__init__(variables)
        self._output = output

    def runcode(self, code: CodeType) -> None:
        with self._output.statement():
            super().runcode(code)

    def showtraceback(self) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, KeyboardInterrupt):
            fix = "repeat the call to start over; cluster.down() releases the machines"
            error = ShoalError("interrupted", why="what was started so far still exists", fix=fix)
        if isinstance(error, ShoalError):
            self._output.error(error)
        else:
            super().showtraceback()


def _enable_completion(variables: dict[str, Any]) -> None:
    """Complete with the tab key, if Python was built with readline."""
    try:
        import readline
        import rlcompleter
    except ImportError:
        return
    readline.set_completer(rlcompleter.Completer(variables).complete)
    readline.parse_and_bind("tab: complete")
