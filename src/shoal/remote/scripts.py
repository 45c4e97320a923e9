"""Shell scripts that are package data, as commands for a runner. Runs nothing."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from shoal.remote.runner import quote


@functools.cache
def read_script(package: str, name: str) -> str:
    """The text of a script in this package, such as `shoal.bootstrap.scripts`."""
    import pkgutil  # most commands need no script; importlib.resources is slower to import

    content = pkgutil.get_data(package, name)
    assert content is not None, f"{package} has no loader that reads {name}"
    return content.decode()


def script_command(package: str, name: str, *arguments: str, libraries: Sequence[str] = ()) -> str:
    """A command that runs a script with these positional arguments under `sh`. The script travels
    in the command itself, so that it needs no round trip of its own. `libraries` are scripts of
    the same package that only define functions; they go before it."""
    text = "".join(read_script(package, each) for each in (*libraries, name))
    return quote(["sh", "-c", text, name, *arguments])
