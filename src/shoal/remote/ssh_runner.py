"""Runs things on a machine over SSH, each command in a login shell of its own.

All commands share one connection (see `master`), so a command costs a new session on it and no
new login. What is sent and what comes back is described in `wire`.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import math
import textwrap
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from shoal.core.clock import Clock, SystemClock
from shoal.core.errors import SetupError, ShoalError, UnreachableError
from shoal.remote import control_master, rsync, tar_copy
from shoal.remote.container import Container
from shoal.remote.exec_protocol import (
    attached_command,
    attached_inside,
    attached_program,
    end_watched,
    remote_command,
    watched_command,
)
from shoal.remote.port_forward import check_free, hold_open
from shoal.remote.runner import Completed, Filters, OnLine, PortForward, PreconditionFailedError
from shoal.remote.ssh_errors import diagnose, is_gone, no_way_in
from shoal.remote.ssh_session import ConnectionLost, NotStarted, run_over_ssh
from shoal.remote.ssh_target import SshTarget, forwarding_argv, shared_argv
from shoal.remote.terminal import in_terminal, with_streams

# Until a session on a new connection says its first word: dotfiles on a very busy machine.
_BEGIN_SECONDS = 20.0
# For a connection that has to be made anew before a command.
_RECONNECT_SECONDS = 30.0
# A command that is to end gets two seconds after each of three signals.
_END_SECONDS = 10.0
# Exit codes above this one mean an end by a signal, to the ssh here or to the command there.
_SIGNALLED = 128
# A machine that ended a command so short a time ago need not be asked whether it is there.
_STILL_THERE_SECONDS = 5.0
# For the few lines that an attached command consists of.
_LEAVE_SECONDS = 60.0
# By which a command says that what was to be so before it is not.
_NOT_SO = 77
# sshd allows ten sessions on a connection, and other programs of ours may use it as well.
_SESSIONS = 6
_SESSION_PAUSE = 0.2
_SESSION_TRIES = 150


class SshRunner:
    """A machine reached by OpenSSH. `name` is what errors call it.

    `login_grace` is for how many seconds `connect` takes a refused login for a new machine that
    has not installed the key yet; `silence`, after how many seconds a connection on which nothing
    begins is taken for dead and replaced. With a `container`, everything but ports is about what
    is in it, and its engine's command stands between the login and each command.
    """

    def __init__(
        self,
        name: str,
        target: SshTarget,
        *,
        login_grace: float = 30.0,
        silence: float = 6.0,
        clock: Clock | None = None,
        container: Container | None = None,
    ) -> None:
        self.name = name
        self.target = target
        self.container = container
        self._login_grace = login_grace
        self._silence = silence
        self._clock = clock or SystemClock()
        self._sessions = asyncio.Semaphore(_SESSIONS)
        self._heard = -math.inf

    async def connect(self, *, timeout: float) -> None:
        """Return once commands can be run; keep trying until the deadline, but not after what
        cannot pass: a changed host key, an unusable key, a login that stays refused."""
        deadline = self._clock.monotonic() + timeout
        await self.open_connection(timeout=timeout)
        if self._clock.monotonic() < self._heard + _STILL_THERE_SECONDS:
            return
        # The connection may be an old one. Whether its machine is still there shows when
        # something is asked of it, and `run` replaces it if need be.
        try:
            left = max(1.0, deadline - self._clock.monotonic())
            await self.run(":", timeout=left, skip_profile=True)
        except TimeoutError:
            raise UnreachableError(
                f"{self.target} does not run commands",
                why="it let us in, but a command that does nothing did not end in time",
                node=self.name,
            ) from None

    async def open_connection(self, *, timeout: float) -> None:
        """Return once there is a connection, be it an old one. That is enough for whoever asks
        something of the machine next: the first command finds out."""
        await self._open(timeout)

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
        work = self._run(command, env or {}, stdin or b"", on_line, skip_profile)
        try:
            return await asyncio.wait_for(work, timeout)
        except asyncio.TimeoutError:
            what = textwrap.shorten(command, 80)
            raise TimeoutError(f"{self.name}: no end after {timeout:g} s: {what}") from None

    async def attach(
        self,
        command: str | None,
        *,
        env: Mapping[str, str] | None = None,
        tty: bool = True,
        forwards: Sequence[PortForward] = (),
        precondition: str = "",
    ) -> int:
        """Run a command (or a shell) with this process's own terminal, and return its code.

        With `tty` the far end has a terminal, too: Ctrl-C reaches the command, and losing us
        ends it. Without, the streams pass as they are, and the command is ended when we are
        interrupted.
        """
        check_free(forwards)
        argv = forwarding_argv(self.target, forwards) if forwards else shared_argv(self.target)
        argv += ["-tt" if tty else "-T", "--", self.target.host]
        if command is None and not env and not precondition and self.container is None:
            await self.connect(timeout=_RECONNECT_SECONDS)
            return await in_terminal(argv)
        program = await self._leave_program(command, env or {}, precondition)
        if tty and self.container is not None:
            enter = self.container.exec_argv(tty=True)
            return await in_terminal([*argv, attached_inside(program, enter, self._enter)])
        if tty:
            return await in_terminal([*argv, attached_command(program)])
        try:
            code = await with_streams([*argv, watched_command(program, self._enter)])
        except BaseException:
            await self._end_watched(program)
            raise
        if code > _SIGNALLED:
            await self._end_watched(program)
        return code

    async def forward(self, forwards: Sequence[PortForward], opened: Callable[[], None]) -> None:
        # Makes the connection to a machine in between, too, and tells what is wrong with it.
        await self._open()
        await hold_open(self.name, self.target, forwards, opened)

    async def put(self, source: Path, target: str, filters: Filters = Filters()) -> None:
        try:
            await self._transfer(lambda: rsync.put(self._place, source, target, filters))
        except rsync.NoRsyncError:
            if self.container is None:
                raise
            machine = copy.copy(self)
            machine.container = None
            await tar_copy.put(machine, self.container, source, target, filters)

    async def get(self, source: str, target: Path, filters: Filters = Filters()) -> None:
        await self._transfer(lambda: rsync.get(self._place, source, target, filters))

    async def relogin(self) -> None:
        await control_master.retire_connection(self.target)

    def in_container(self, container: Container) -> SshRunner:
        runner = copy.copy(self)  # the same connection, and the same count of its sessions
        runner.container = container
        return runner

    async def close(self) -> None:
        """Nothing to do: the shared connection stays warm for the next command."""

    async def disconnect(self) -> None:
        """End the shared connection for whoever uses it: the machine is about to go."""
        await control_master.close_connection(self.target)

    @property
    def _enter(self) -> list[str]:
        return [] if self.container is None else self.container.exec_argv()

    @property
    def _place(self) -> rsync.Place:
        return rsync.Place(self.name, self.target, self.container)

    async def _open(self, timeout: float = _RECONNECT_SECONDS) -> None:
        await control_master.open_connection(
            self.name,
            self.target,
            timeout=timeout,
            login_grace=self._login_grace,
            clock=self._clock,
        )

    async def _transfer(self, transfer: Callable[[], Awaitable[None]]) -> None:
        async with self._sessions:
            await self._open()
            try:
                await transfer()
            except UnreachableError:
                # What arrived stays, so going on over a new connection is all that is left.
                await control_master.retire_connection(self.target)
                await self._open()
                await transfer()

    async def _run(
        self,
        command: str,
        env: Mapping[str, str],
        stdin: bytes,
        on_line: OnLine | None,
        skip_profile: bool,
    ) -> Completed:
        said: tuple[str, ...] = ()
        async with self._sessions:
            for begin_timeout in (self._silence, _BEGIN_SECONDS):
                await self._open()
                self._heard = -math.inf
                outcome = await self._in_a_session(
                    command, env, stdin, on_line, begin_timeout, skip_profile
                )
                if isinstance(outcome, Completed):
                    self._heard = self._clock.monotonic()
                    return outcome
                # The command never began, so beginning it again on a new connection is safe.
                said = outcome.said or ("timed out: a session was asked for and never began",)
                await control_master.retire_connection(self.target)
        raise diagnose(self.name, self.target, said).error

    async def _in_a_session(
        self,
        command: str,
        env: Mapping[str, str],
        stdin: bytes,
        on_line: OnLine | None,
        begin_timeout: float,
        skip_profile: bool,
    ) -> Completed | NotStarted:
        far = remote_command(self._enter)
        argv = [*shared_argv(self.target), "-T", "--", self.target.host, far]
        for _ in range(_SESSION_TRIES):
            outcome = await run_over_ssh(
                argv,
                command,
                env=env,
                stdin=stdin,
                on_line=on_line,
                begin_timeout=begin_timeout,
                skip_profile=skip_profile,
            )
            if not (isinstance(outcome, NotStarted) and outcome.for_want_of_sessions):
                break
            # Others use this connection as well, and its machine allows no more at a time.
            await self._clock.sleep(_SESSION_PAUSE)
        if isinstance(outcome, ConnectionLost):
            raise UnreachableError(
                f"lost the connection to {self.target} while a command ran",
                why="the machine went down, or the network to it did",
                fix="run it again once the machine is back",
                node=self.name,
                output=outcome.tail,
            )
        if isinstance(outcome, NotStarted):
            self._check_there_is_a_shell(outcome)
        return outcome

    def _check_there_is_a_shell(self, outcome: NotStarted) -> None:
        """Raise if it was not for the connection that a command did not begin."""
        answered = 0 <= outcome.code < 255
        # podman, too, ends with 255 when there is no way in.
        if self.container is not None and (answered or is_gone(outcome.said)):
            raise no_way_in(self.name, self.container, outcome.said)
        if answered:
            raise _no_shell(self.name, self.target, outcome)

    async def _leave_program(
        self, command: str | None, env: Mapping[str, str], precondition: str
    ) -> str:
        """Put what `attach` is to run on the machine, and return where. Streams in use leave no
        way in but the command line, where neither secrets nor another shell's quotes belong: so
        the program waits in a file that only its reader can read, and that is gone once read."""
        left = await self.run(
            f"(\n{precondition or ':'}\n) </dev/null >/dev/null 2>&1 || exit {_NOT_SO}\n"
            'umask 077; file=$(mktemp) && cat >"$file" && echo "$file"',
            stdin=attached_program(command, env),
            timeout=_LEAVE_SECONDS,
            skip_profile=True,
        )
        if left.code == _NOT_SO:
            raise PreconditionFailedError
        if not left.ok:
            raise SetupError(
                f"{self.target} has no room for a temporary file",
                fix="make room in its /tmp",
                node=self.name,
                output=left.tail,
            )
        return left.tail[-1]

    async def _end_watched(self, program: str) -> None:
        """Without a terminal, nothing else tells a command that we are gone."""
        with contextlib.suppress(ShoalError, TimeoutError):
            await self.run(end_watched(program), timeout=_END_SECONDS)


def _no_shell(node: str, target: SshTarget, outcome: NotStarted) -> SetupError:
    if outcome.code == 127:
        return SetupError(
            f"{target} has no bash",
            why="commands of a cluster file are written for it",
            fix="install bash there",
            node=node,
            output=outcome.said,
        )
    return SetupError(
        f"{target} does not run commands",
        why=outcome.said[-1] if outcome.said else f"its login shell ended with {outcome.code}",
        fix="check `auth.ssh_user`: many images refuse root and name the user to take",
        node=node,
        output=outcome.said,
    )
