"""What it takes to run things on a machine, whatever the way there.

A runner knows one machine. It carries text and files; it knows nothing of Ray, of clusters or
of what the commands are for.
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
OnLine = Callable[[str, Stream], None]


@dataclass(frozen=True)
class Completed:
    """How a command ended: its exit code and the last lines it printed, both streams mixed."""

    code: int
    tail: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return self.code == 0


@dataclass(frozen=True)
class Filters:
    """Which files of a tree stay behind: rsync's exclude patterns and per-directory filter
    files (such as `.gitignore`)."""

    exclude: tuple[str, ...] = ()
    filter_files: tuple[str, ...] = ()


@dataclass(frozen=True)
class PortForward:
    """A port here that leads to a port on the machine."""

    local: int
    remote: int


class PreconditionFailedError(Exception):
    """What had to be so before a command is not."""


class Runner(Protocol):
    """How to run things on one machine.

    Every method raises `UnreachableError` when the machine cannot be reached (any more), and
    `TimeoutError` when its own deadline passes; a command that merely fails is a `Completed`.
    Cancelling a call ends what it started on the machine.
    """

    async def connect(self, *, timeout: float) -> None:
        """Return once commands can be run; keep trying until the deadline."""
        ...

    async def run(
        self,
        command: str,
        *,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        on_line: OnLine | None = None,
        timeout: float | None = None,
        skip_profile: bool = False,
    ) -> Completed:
        """Run a shell command in a login shell of its own, in the home directory: it sees the
        dotfiles as the command before it left them. Lines arrive as they are printed. A `plain`
        one is of our own and needs nothing that dotfiles may set: it does not wait for them."""
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
        """Run a command (or a shell) with this process's own terminal, and return its code. Where
        another command, `precondition`, fails, `NotSoError` is raised and nothing is run."""
        ...

    async def forward(self, forwards: Sequence[PortForward], opened: Callable[[], None]) -> None:
        """Lead ports here to ports there until cancelled; call `opened` once they do."""
        ...

    async def put(self, source: Path, target: str, filters: Filters = Filters()) -> None:
        """Bring the file, or the content of the tree, `source` to `target` on the machine.

        Parents are made, what is unchanged is not sent again, and what else is there stays. A
        file goes into `target` if that ends in a slash or is a directory. `~` and relative
        paths start at home; nothing else in a path means anything.
        """
        ...

    async def get(self, source: str, target: Path, filters: Filters = Filters()) -> None:
        """Bring the file, or the content of the tree, `source` on the machine to `target` here,
        by the same rules."""
        ...

    async def relogin(self) -> None:
        """Log in anew, so that what has changed about the user since, such as the groups it is
        in, holds for what comes next. What runs already goes on."""
        ...

    def in_container(self, container: Container) -> Runner:
        """The way to run things in a container on this machine."""
        ...

    async def close(self) -> None:
        """Let go of what this object holds. Anything left running on the machine stays, and a
        connection that others may use stays warm."""
        ...


def quote(argv: Sequence[str]) -> str:
    """A list of arguments as one shell word sequence. The only place where that is done."""
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
    """Run a command and return all that it printed on standard output, too."""
    printed: list[str] = []

    def keep(line: str, stream: Stream) -> None:
        if stream == "stdout":
            printed.append(line)

    done = await runner.run(
        command, env=env, stdin=stdin, on_line=keep, timeout=timeout, skip_profile=skip_profile
    )
    return done, printed
