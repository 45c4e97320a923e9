"""Copies files into a container whose image has no rsync: by rsync to the host, and from there by
tar.

Slower than rsync alone, because the second part copies everything each time, but every image has
tar or can have it.
"""

from __future__ import annotations

import posixpath
import secrets
from pathlib import Path

from shoal.core.errors import SetupError
from shoal.remote.container import Container
from shoal.remote.runner import Filters, Runner, quote
from shoal.remote.scripts import read_script

_STAGING_DIRECTORY = ".shoal/staged"
_SECONDS = 3600.0
# On the host. $0 is the directory to copy, below the home directory, $1 the container runtime, $2
# the container, $3 the script that runs inside, $4 the target, and $5 the name of a single file.
_SEND = 'tar -C "$HOME/$0" -cf - . | "$1" exec -i "$2" sh -c "$3" tar_receive.sh "$4" "$5"'


async def put(
    host: Runner, container: Container, source: Path, target: str, filters: Filters
) -> None:
    """Copy the file, or the content of the directory, `source` to `target` in a container."""
    file_name = _file_name(source)
    receive = read_script("shoal.remote.scripts", "tar_receive.sh")
    staging = posixpath.join(_STAGING_DIRECTORY, secrets.token_hex(8))
    try:
        await host.put(source, f"{staging}/", filters)
        arguments = [staging, container.runtime, container.name, receive, target, file_name]
        result = await host.run(quote(["sh", "-c", _SEND, *arguments]), timeout=_SECONDS)
    finally:
        await host.run(quote(["rm", "-rf", staging]), timeout=_SECONDS, skip_profile=True)
    if not result.ok:
        raise SetupError(
            f"could not copy all files to {target}",
            why=" ".join(result.tail[-1:]) or f"tar failed with exit code {result.code}",
            fix="install rsync or tar in the image",
            output=result.tail,
        )


def _file_name(source: Path) -> str:
    """The name of a single file; empty for a directory."""
    return "" if source.is_dir() else source.name
