"""Copies files to and from a host with rsync over the shared connection, and lists the files that
it would copy.

What is already there is not sent again, and nothing else there is deleted. With an rsync before
version 3, as on macOS, only the options of 2.6.9 are used.
"""

from __future__ import annotations

import functools
import logging
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
from shoal.remote.scripts import on_one_line
from shoal.remote.ssh_errors import container_exec_error, is_container_down, login_command
from shoal.remote.ssh_target import SshTarget, shared_argv

_log = logging.getLogger(__name__)

# Recursion, links, modes, and times except those of directories, which not every user may set.
# Unlike with -a, files belong to the login user: the owner's id means another user there.
_OPTIONS = "-rlptO"
# Compressed: the upload of a laptop is usually the bottleneck.
_TRANSFER_OPTIONS = f"{_OPTIONS}z"
# Without any data, not in total: a disk that hangs on the remote host keeps its connection alive.
_SILENCE_SECONDS = 300

# Exit codes of rsync, and those of ssh and the remote shell.
_PARTIAL = 23
_VANISHED = 24
_SILENT = 30
_NOT_FOUND = 127
_NO_CONNECTION = 255

# What rsync prints if an existing directory belongs to another user.
_MODE_ERROR = re.compile(r'rsync: .*failed to set permissions on ".*/\.": .*')
# What one side of rsync prints because the other side has failed.
_CONSEQUENCES = ("connection unexpectedly closed", "Broken pipe", "Connection reset by peer")
# What rsync prints if a file changed twice while it was sent.
_CHANGED_FILE = "failed verification -- update discarded"
_CHANGED_FILE_TRIES = 3
_USER_HOME = re.compile(r"~[A-Za-z0-9_][A-Za-z0-9_.-]*")

# Tells the listed names from messages. rsync writes unprintable bytes as \#ooo.
_LIST_PREFIX = b"shoal:"
_ESCAPED_BYTE = re.compile(rb"\\#([0-7]{3})")


class NoRsyncError(SetupError):
    """The host is fine but has no rsync. Installing it solves the problem."""


@dataclass(frozen=True)
class RsyncEndpoint:
    """The remote side of a transfer: a host, or a container on it."""

    node: str
    host: SshTarget
    container: Container | None = None

    def __str__(self) -> str:
        return f"the {self.container} of {self.host}" if self.container else str(self.host)


async def put(endpoint: RsyncEndpoint, source: Path, target: str, filters: Filters) -> None:
    """Copy the file, or the content of the directory, to `target`; create its parents."""
    script, arguments = _outgoing(endpoint.node, source)
    await _rsync(endpoint, script, target, [*_filter_arguments(filters), *arguments, "node:."])


async def get(endpoint: RsyncEndpoint, source: str, target: Path, filters: Filters) -> None:
    """Copy the file, or the content of the directory, from `source`; create `target`'s parents."""
    local = _incoming(target)
    await _rsync(endpoint, "rsync_send.sh", source, [*_filter_arguments(filters), "node:.", local])


def list_files(source: Path, filters: Filters) -> list[str]:
    """The paths that `put` would send, sorted and relative to the directory `source`; the name of
    `source` if that is a file that the filters do not exclude. Raises OSError if a directory
    cannot be read."""
    import tempfile  # slow to import, and most commands list no files

    local = source.absolute()
    sources = [f"{local}/"] if local.is_dir() else ["-L", str(local)]
    with tempfile.TemporaryDirectory(prefix="shoal-") as empty:
        argv = [
            *("rsync", _OPTIONS, "--dry-run", f"--out-format={_LIST_PREFIX.decode()}%n"),
            *(*_filter_arguments(filters), *sources, f"{empty}/"),
        ]
        try:
            result = subprocess.run(argv, capture_output=True, env=_environment(), check=False)
        except FileNotFoundError:
            raise _no_local_rsync() from None
    if result.returncode not in (0, _VANISHED):
        lines = os.fsdecode(result.stderr).splitlines()
        reason = failure_cause(lines) or f"exit code {result.returncode}"
        raise OSError(None, reason, str(source))
    lines_with_name = (
        line.removeprefix(_LIST_PREFIX)
        for line in result.stdout.split(b"\n")
        if line.startswith(_LIST_PREFIX)
    )
    paths = (os.fsdecode(_unescape(name)).rstrip("/") for name in lines_with_name)
    return sorted(path for path in paths if path != ".")


def _unescape(name: bytes) -> bytes:
    return _ESCAPED_BYTE.sub(lambda match: bytes([int(match[1], 8)]), name)


def _outgoing(node: str, source: Path) -> tuple[str, list[str]]:
    local = source.absolute()
    if local.is_dir():
        return "rsync_receive_directory.sh", [f"{local}/"]
    if local.exists():
        # A symbolic link that is named explicitly stands for its file.
        return "rsync_receive_file.sh", ["-L", str(local)]
    raise ConfigError(f"{local} does not exist", fix="correct the path", node=node)


def _incoming(target: Path) -> str:
    local = target.absolute()
    local.parent.mkdir(parents=True, exist_ok=True)
    return f"{local}/" if local.is_dir() else str(local)


def remote_path_arguments(path: str) -> tuple[str, str]:
    """The first two arguments of rsync_path.sh, which every login shell passes on unchanged.
    Relative paths start at the home directory, as does `~`; nothing else is special."""
    first, slash, rest = path.partition("/")
    home = first if first == "~" or _USER_HOME.fullmatch(first) else ""
    if home:
        path = slash + rest
    elif path and not path.startswith("/"):
        path = f"./{path}"
    return home, "".join(f"\\0{byte:03o}" for byte in os.fsencode(path))


def _filter_arguments(filters: Filters) -> list[str]:
    return [
        *(f"--exclude={pattern}" for pattern in filters.exclude),
        *(f"--filter=dir-merge,- {name}" for name in filters.filter_files),
    ]


@functools.cache
def _nanosecond_times() -> tuple[str, ...]:
    """Compare times to the nanosecond: otherwise a file that changed within the same second and
    kept its size would not be sent again. An older remote rsync reads all files instead."""
    try:
        version = subprocess.run(["rsync", "--version"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired) as error:
        _log.debug("could not read the version of rsync: %s", error)
        return ()
    return ("--modify-window=-1",) if re.search(r"version 3\.", version.stdout) else ()


def _environment() -> dict[str, str]:
    """Without the user's settings for rsync, which are meant for other transfers."""
    return {k: v for k, v in os.environ.items() if not k.startswith("RSYNC_")}


async def _rsync(endpoint: RsyncEndpoint, script: str, path: str, arguments: Sequence[str]) -> None:
    remote_argv = [
        *(endpoint.container.exec_argv() if endpoint.container is not None else ()),
        *("bash", "--noprofile", "--norc", "-c", on_one_line("rsync_path.sh", script), "rsync"),
        *remote_path_arguments(path),
    ]
    argv = [
        "rsync",
        f"--rsh={shlex.join([*shared_argv(endpoint.host), '-T'])}",
        f"--rsync-path=exec {shlex.join(remote_argv)}",
        _TRANSFER_OPTIONS,
        f"--timeout={_SILENCE_SECONDS}",
        *_nanosecond_times(),
        *arguments,
    ]
    try:
        for _ in range(_CHANGED_FILE_TRIES):
            result = await run_process(argv, env=_environment())
            if result.code != _PARTIAL or not any(_CHANGED_FILE in x for x in result.tail):
                break
            _log.info("%s: a file of %s changed while it was sent", endpoint.node, path)
    except FileNotFoundError:
        raise _no_local_rsync() from None
    if not is_complete(result):
        raise _failure(endpoint, path, result)


def is_complete(result: Completed) -> bool:
    """Whether rsync copied everything. It may have failed to set the mode of an existing directory
    of another user, which does not matter."""
    if result.code in (0, _VANISHED):
        return True
    messages = [line for line in result.tail if line.strip() and "(code 23)" not in line]
    errors = [line for line in messages if not _MODE_ERROR.fullmatch(line.strip())]
    return result.code == _PARTIAL and bool(messages) and not errors


def _no_local_rsync() -> ConfigError:
    return ConfigError(
        "this machine has no rsync",
        why="Shoal copies files with it",
        fix="install it: apt-get install rsync, or brew install rsync",
    )


def _failure(endpoint: RsyncEndpoint, path: str, result: Completed) -> SetupError:
    node, code, output = endpoint.node, result.code, result.tail
    text = "\n".join(output)
    if code == _NOT_FOUND or "rsync: command not found" in text or "rsync: not found" in text:
        return NoRsyncError(
            f"{endpoint} has no rsync",
            why="Shoal copies files with it",
            fix="install it there or in its image: sudo apt-get install -y rsync, or the like",
            node=node,
            output=output,
        )
    if "is your shell clean" in text:
        return SetupError(
            f"{endpoint.host} prints text at every login",
            why="a line in a dotfile there, such as ~/.bashrc, prints even without a terminal",
            fix="end that file early without a terminal: [[ $- == *i* ]] || return",
            node=node,
            output=output,
        )
    if endpoint.container is not None and is_container_down(output):
        return container_exec_error(node, endpoint.container, output)
    if code in (_NO_CONNECTION, _SILENT):
        silent = f"no data for {_SILENCE_SECONDS} s: a disk there may hang"
        return UnreachableError(
            f"lost the connection to {endpoint.host} while copying files",
            why=silent if code == _SILENT else "the host or the network to it went down",
            node=node,
            output=output,
        )
    return SetupError(
        f"could not copy all files of {path}",
        why=failure_cause(output) or f"rsync failed with exit code {code}",
        fix=_fix_for(text, endpoint),
        node=node,
        output=output,
    )


def failure_cause(output: Sequence[str]) -> str:
    """The line of rsync's output that says why a transfer failed. Other lines come from dotfiles,
    do not matter, or are consequences: the other side only sees that the connection closes."""
    lines = [line.strip() for line in output if line.strip()]
    own = [line for line in lines if line.startswith("rsync: ") and not _is_minor(line)]
    others = [line for line in lines if not line.startswith(("rsync: ", "rsync error: "))]
    summaries = [line for line in lines if line.startswith("rsync error: ")]
    return next(iter((*own, *others[-1:], *summaries)), "")


def _is_minor(line: str) -> bool:
    is_consequence = any(phrase in line for phrase in _CONSEQUENCES)
    return is_consequence or _MODE_ERROR.fullmatch(line) is not None


def _fix_for(text: str, endpoint: RsyncEndpoint) -> str:
    if "No space left on device" in text or "Disk quota exceeded" in text:
        return f"free space there: {login_command(endpoint.host, 'df -h')} shows what is full"
    if "Permission denied" in text or "Read-only file system" in text:
        return f"let the user {endpoint.host.user} write to it, or choose another path"
    return ""
