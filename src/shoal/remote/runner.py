"""The interface for running commands and copying files on one host, however it is reached.

A runner knows nothing about Ray or clusters, nor what the commands are for.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from shoal.remote.container import Container

Stream = Literal["stdout", "stderr"]
# Receives the lines of a command, for people: see `command_output` for what is changed in them.
OnLine = Callable[[str, Stream], None]
# Receives the bytes that a command prints, unchanged.
OnBytes = Callable[[bytes, Stream], None]


@dataclass(frozen=True)
class Completed:
    """The exit code of a command and the last lines it printed, both streams mixed."""

    code: int
    tail: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return self.code == 0


@dataclass(frozen=True)
class Filters:
    """The files of a directory that are not copied: rsync's exclude patterns and the names of
    per-directory filter files (such as `.gitignore`)."""

    exclude: tuple[str, ...] = ()
    filter_files: tuple[str, ...] = ()


@dataclass(frozen=True)
class PortForward:
    """A port of this machine that is forwarded to a port of the host."""

    local: int
    remote: int


class PreconditionFailedError(Exception):
    """The precondition of the command does not hold."""


class Runner(Protocol):
    """Runs commands and copies files on one host.

    Every method raises `UnreachableError` if the host cannot be reached (any more), and
    `TimeoutError` if its own deadline passes; a command that fails is a `Completed`. Cancelling a
    call ends what it started on the host.
    """

    async def connect(self, *, timeout: float) -> None:
        """Return once the host runs commands; retry until the deadline."""
        ...

    async def run(
        self,
        command: str,
        *,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        on_line: OnLine | None = None,
        on_bytes: OnBytes | None = None,
        timeout: float | None = None,
        skip_profile: bool = False,
    ) -> Completed:
        """Run a shell command in a new login shell, in the home directory: it sees the dotfiles as
        the command before it left them. Output is delivered as it is printed: to `on_bytes`
        unchanged, to `on_line` as lines for people, which may be cut. With `skip_profile` the
        shell does not read dotfiles, which may be slow: for Shoal's own commands, which need
        nothing that dotfiles set."""
        ...

    async def attach(
        self,
        command: str | None,
        *,
        env: Mapping[str, str] | None = None,
        tty: bool = True,
        forwards: Sequence[PortForward] = (),
        precondition: str = "",
    ) -> int:
        """Run a command, or a shell, on this process's terminal, and return its exit code. If the
        command `precondition` fails, raise `PreconditionFailedError` and run nothing."""
        ...

    async def forward(self, forwards: Sequence[PortForward], opened: Callable[[], None]) -> None:
        """Forward ports until cancelled; call `opened` once they are open."""
        ...

    async def put(self, source: Path, target: str, filters: Filters = Filters()) -> None:
        """Copy the file, or the content of the directory, `source` to `target` on the host.

        Parent directories are created, unchanged files are not sent again, and other files there
        stay. A file goes into `target` if that ends in a slash or is a directory. `~` and relative
        paths start at the home directory; nothing else in a path is special.
        """
        ...

    async def get(self, source: str, target: Path, filters: Filters = Filters()) -> None:
        """Copy the file, or the content of the directory, `source` on the host to the local path
        `target`, by the same rules."""
        ...

    async def relogin(self) -> None:
        """Log in again, so that changes to the user, such as new groups, apply to the commands that
        follow. Running commands continue."""
        ...

    def in_container(self, container: Container) -> Runner:
        """A runner for a container on this host."""
        ...

    async def close(self) -> None:
        """Release what this object holds. What runs on the host continues, and a shared connection
        stays open."""
        ...


def quote(argv: Sequence[str]) -> str:
    """A list of arguments as shell text. The only place that quotes for a shell."""
    return shlex.join(argv)


async def capture(
    runner: Runner,
    command: str,
    *,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
    timeout: float | None = None,
    skip_profile: bool = False,
) -> tuple[Completed, list[str]]:
    """Run a command, and return its result and the complete lines of its standard output, however
    long they are."""
    chunks: list[bytes] = []

    def collect(chunk: bytes, stream: Stream) -> None:
        if stream == "stdout":
            chunks.append(chunk)

    result = await runner.run(
        command, env=env, stdin=stdin, on_bytes=collect, timeout=timeout, skip_profile=skip_profile
    )
    *lines, rest = b"".join(chunks).decode(errors="replace").split("\n")
    return result, [*lines, rest] if rest else lines
