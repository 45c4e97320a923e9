"""Files into a container whose image has no rsync: to its machine first, and from there by tar.

Slower, since all of it goes over the second part of the way each time, but it asks nothing of an
image that not every image has.
"""

from __future__ import annotations

import posixpath
import secrets
from pathlib import Path

from shoal.core.errors import SetupError
from shoal.remote.container import Container
from shoal.remote.runner import Filters, Runner, quote

_DIRECTORY = ".shoal/staged"
_SECONDS = 3600.0

# On the machine. $0 is the directory with what is to go, $1 the engine, $2 the container, $3 what
# runs inside, $4 the target, and $5 the name of a single file.
_SEND = r"""
tar -C "$0" -cf - . | "$1" exec -i "$2" sh -c "$3" "$4" "$5"
"""

# Inside. A tree's content goes into the target, a single file to it, by the same rules as rsync's.
_RECEIVE = r"""
case $0 in
"~"|"~/"*) path=$HOME${0#"~"} ;;
/*) path=$0 ;;
*) path=$HOME/$0 ;;
esac
if [ -n "$1" ]; then
  case $path in */) into=$path ;; *) if [ -d "$path" ]; then into=$path; fi ;; esac
  if [ -n "$into" ]; then mkdir -p "$into"; exec tar -xf - --no-same-owner -C "$into"; fi
  mkdir -p "$(dirname "$path")" || exit
  new=$(mktemp -d "$(dirname "$path")/.shoal.XXXXXX") || exit
  tar -xf - --no-same-owner -C "$new" && mv -f "$new/$1" "$path"
  code=$?
  rm -rf "$new"
  exit $code
fi
mkdir -p "$path" && exec tar -xf - --no-same-owner -C "$path"
"""


async def put(
    machine: Runner, container: Container, source: Path, target: str, filters: Filters
) -> None:
    """Bring the file, or the content of the tree, `source` to `target` in a container."""
    single = _name_of_file(source)
    stage = posixpath.join(_DIRECTORY, secrets.token_hex(8))
    try:
        await machine.put(source, f"{stage}/", filters)
        argv = [stage, container.runtime, container.name, _RECEIVE, target, single]
        done = await machine.run(quote(["sh", "-c", _SEND, *argv]), timeout=_SECONDS)
    finally:
        await machine.run(quote(["rm", "-rf", stage]), timeout=_SECONDS)
    if not done.ok:
        raise SetupError(
            f"not all files of {target} arrived",
            why=" ".join(done.tail[-1:]) or f"tar ended with {done.code}",
            fix="install rsync or tar in the image",
            output=done.tail,
        )


def _name_of_file(source: Path) -> str:
    """The name under which a single file arrives; none for a tree."""
    return "" if source.is_dir() else source.name
