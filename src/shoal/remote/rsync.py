"""Files to and from a machine: rsync over the shared connection.

What is already there is not sent again, and nothing that is there besides is removed. Where this
machine's rsync is older than 3, as on a Mac, only what 2.6.9 understands is used.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.core.errors import ConfigError, SetupError, UnreachableError
from shoal.remote.container import Container
from shoal.remote.process import run_process
from shoal.remote.runner import Completed, Filters
from shoal.remote.ssh_errors import is_gone, no_way_in
from shoal.remote.ssh_target import SshTarget, shared_argv

# Recursion, links, modes, and times, but for directories', which nobody asks for and not everybody
# may set. Unlike with -a, files belong to who logs in: the owner's number here means someone else
# there. Compression: the way up from a desk is the narrow part.
_HOW = "-rlptOz"
# Of silence, not of work: a disk that hangs at the far end keeps its connection alive.
_SILENCE_SECONDS = 300

# rsync's own codes, and the one that ssh and the shell at the far end have.
_PARTIAL = 23
_VANISHED = 24
_SILENT = 30
_NOT_FOUND = 127
_NO_CONNECTION = 255

# At the far end, rsync is started by these lines. They put the real path in place of the last
# argument, so that it meets no shell, and no rsync's idea of quoting, on the way.
# A directory that was there keeps its mode: it may be /tmp, or the home that sshd looks at.
_RECEIVE_TREE = (
    'if [ -d "$path" ]; then'
    ' mode=$(stat -c %a -- "$path" 2>/dev/null || stat -f %Lp -- "$path");'
    ' rsync "${@:1:$#-1}" "$path/"; code=$?;'
    ' chmod "$mode" "$path" 2>/dev/null; exit $code; fi;'
    ' mkdir -p -- "$path" && exec rsync "${@:1:$#-1}" "$path/"'
)
# What rsync says of such a directory where it is another user's.
_NOT_OURS = re.compile(r'rsync: .*failed to set permissions on ".*/\.": .*')
_RECEIVE_FILE = (
    'case $path in */) into=$path;; *) into=$(dirname -- "$path");; esac;'
    ' mkdir -p -- "$into" && exec rsync "${@:1:$#-1}" "$path"'
)
_SEND = (
    'if [ -d "$path" ]; then exec rsync "${@:1:$#-1}" "$path/"; fi;'
    # --server --sender come first.
    ' exec rsync "$1" "$2" -L "${@:3:$#-3}" "$path"'
)

_HOME_OF = re.compile(r"~[A-Za-z0-9_][A-Za-z0-9_.-]*")


class NoRsyncError(SetupError):
    """The machine is fine but for rsync. Whoever may install things there can go on."""


@dataclass(frozen=True)
class Place:
    """Where files are at the far end: on a machine, or in a container on it."""

    node: str
    machine: SshTarget
    container: Container | None = None

    def __str__(self) -> str:
        return f"the {self.container} of {self.machine}" if self.container else str(self.machine)


async def put(place: Place, source: Path, target: str, filters: Filters) -> None:
    """Bring the file or the tree's content to `target`, whose parents are made."""
    script, here = _outgoing(place.node, source)
    await _rsync(place, script, target, [*_rules(filters), *here, "node:."])


async def get(place: Place, source: str, target: Path, filters: Filters) -> None:
    """Bring the file or the tree's content from `source`; `target`'s parents are made."""
    here = _incoming(target)
    await _rsync(place, _SEND, source, [*_rules(filters), "node:.", here])


def _outgoing(node: str, source: Path) -> tuple[str, list[str]]:
    here = source.absolute()
    if here.is_dir():
        return _RECEIVE_TREE, [f"{here}/"]
    if here.exists():
        # A link that was asked for by name stands for its file.
        return _RECEIVE_FILE, ["-L", str(here)]
    raise ConfigError(f"there is no {here} to send", fix="correct the path", node=node)


def _incoming(target: Path) -> str:
    here = target.absolute()
    here.parent.mkdir(parents=True, exist_ok=True)
    return f"{here}/" if here.is_dir() else str(here)


def far_path(path: str) -> str:
    """A path on the machine as a shell word that any login shell passes on to bash unharmed.
    Relative paths start at home, as does `~`; nothing else in a path means anything."""
    home, path = _split_home(path)
    if path and not path.startswith("/") and not home:
        path = f"./{path}"
    octal = "".join(f"\\0{byte:03o}" for byte in os.fsencode(path))
    return f'{home}"$(printf %b. "{octal}")"'


def _split_home(path: str) -> tuple[str, str]:
    first, slash, rest = path.partition("/")
    if first == "~":
        return '"$HOME"', slash + rest
    if _HOME_OF.fullmatch(first):
        return first, slash + rest
    return "", path


def _rules(filters: Filters) -> list[str]:
    return [
        *(f"--exclude={pattern}" for pattern in filters.exclude),
        *(f"--filter=dir-merge,- {name}" for name in filters.filter_files),
    ]


@functools.cache
def _precision() -> tuple[str, ...]:
    """Have times compared to the nanosecond, or a file of the same size that was changed within
    the same second would not be sent again. An older rsync at the far end looks at all files."""
    try:
        told = subprocess.run(["rsync", "--version"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return ("--modify-window=-1",) if re.search(r"version 3\.", told.stdout) else ()


async def _rsync(place: Place, script: str, path: str, arguments: Sequence[str]) -> None:
    enter = "" if place.container is None else f"{shlex.join(place.container.exec_argv())} "
    # The dot keeps a new line at the path's end from being taken for printf's.
    far = f"cd 2>/dev/null; path={far_path(path)}; path=${{path%.}}; {script}"
    far_rsync = f"exec {enter}bash --noprofile --norc -c {shlex.quote(far)} rsync"
    argv = [
        "rsync",
        f"--rsh={shlex.join([*shared_argv(place.machine), '-T'])}",
        f"--rsync-path={far_rsync}",
        _HOW,
        f"--timeout={_SILENCE_SECONDS}",
        *_precision(),
        *arguments,
    ]
    # The user's own settings for rsync are meant for other transfers than these.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RSYNC_")}
    try:
        done = await run_process(argv, env=environment)
    except FileNotFoundError:
        raise ConfigError(
            "this machine has no rsync",
            why="files reach the cluster by it",
            fix="install it: apt-get install rsync, or brew install rsync",
        ) from None
    if not everything_arrived(done):
        raise _failure(place, path, done)


def everything_arrived(done: Completed) -> bool:
    """Whether rsync did all it should, or minds only the mode of what was there before."""
    if done.code in (0, _VANISHED):
        return True
    complaints = [line for line in done.tail if line.strip() and "(code 23)" not in line]
    minds = [line for line in complaints if not _NOT_OURS.fullmatch(line.strip())]
    return done.code == _PARTIAL and bool(complaints) and not minds


def _failure(place: Place, path: str, done: Completed) -> SetupError:
    node, code, said = place.node, done.code, done.tail
    text = "\n".join(said)
    if code == _NOT_FOUND or "rsync: command not found" in text or "rsync: not found" in text:
        return NoRsyncError(
            f"{place} has no rsync",
            why="files reach a machine by it",
            fix="install it there or in its image: sudo apt-get install -y rsync, or the like",
            node=node,
            output=said,
        )
    if "is your shell clean" in text:
        return SetupError(
            f"{place.machine} prints something at every login",
            why="a line in a dotfile there, such as ~/.bashrc, prints even without a terminal",
            fix="let that file end early without one: [[ $- == *i* ]] || return",
            node=node,
            output=said,
        )
    if place.container is not None and is_gone(said):
        return no_way_in(node, place.container, said)
    if code in (_NO_CONNECTION, _SILENT):
        silent = f"nothing came for {_SILENCE_SECONDS} s: a disk there may hang"
        return UnreachableError(
            f"lost the connection to {place.machine} while sending files",
            why=silent if code == _SILENT else "the machine went down, or the network to it did",
            node=node,
            output=said,
        )
    return SetupError(
        f"not all files of {path} arrived",
        why=next((line for line in said if line.strip()), f"rsync ended with {code}"),
        node=node,
        output=said,
    )
