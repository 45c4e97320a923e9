"""Shell scripts that are package data, as commands for a runner. Runs nothing."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from shoal.remote.runner import quote


@functools.cache
def read_script(package: str, name: str) -> str:
    """The text of a script in this package, such as `shoal.bootstrap.scripts`."""
    from importlib import resources  # slow to import, and not every command needs it

    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def script_command(package: str, name: str, *arguments: str, libraries: Sequence[str] = ()) -> str:
    """A command that runs a script with these positional arguments under `sh`. The script travels
    in the command itself, so that it needs no round trip of its own. `libraries` are scripts of
    the same package that only define functions; they go before it."""
    text = "".join(read_script(package, each) for each in (*libraries, name))
    return quote(["sh", "-c", text, name, *arguments])
