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


@functools.cache
def without_comments(name: str) -> str:
    """A script of this package without comments and blank lines, which need not be sent."""
    lines = read_script("shoal.remote.scripts", name).splitlines()
    return "".join(f"{line}\n" for line in lines if line and not line.lstrip().startswith("#"))


@functools.cache
def on_one_line(*names: str) -> str:
    """Scripts of this package, one after the other on a single line. The login shell of a user
    may be csh or fish, which take no quoted line breaks; so every line of such a script ends with
    a separator or with a word that needs none, and it contains no single quotes."""
    lines = "".join(without_comments(name) for name in names).splitlines()
    return " ".join(line.strip() for line in lines)
