"""Runs commands on a host over SSH: the user's each in a new login shell, Shoal's own in none.

All commands share one connection (see `control_master`), so a command costs a session on it and no
login, and Shoal's own commands reuse sessions (see `session_pool`). `exec_protocol` describes what
is sent and what comes back.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import math
import textwrap
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.core.clock import Clock, SystemClock
from shoal.core.errors import SetupError, ShoalError, UnreachableError
from shoal.core.logs import suppress_and_log
from shoal.remote import control_master
from shoal.remote.command_output import CommandOutput
from shoal.remote.container import Container
from shoal.remote.exec_protocol import (
    PROFILE_ENDED,
    attach_in_container_command,
    attach_streams_command,
    attach_terminal_command,
    attached_program,
    end_attached_command,
    remote_command,
    trace_profile_command,
)
from shoal.remote.login_shell_errors import no_shell_error, profile_error
from shoal.remote.runner import (
    Completed,
    Filters,
    OnBytes,
    OnLine,
    PortForward,
    PreconditionFailedError,
)
from shoal.remote.session_pool import SessionPool
from shoal.remote.ssh_errors import classify, container_exec_error, is_container_down
from shoal.remote.ssh_session import ConnectionLost, NotStarted, Outcome, ProfileEnded, Session
from shoal.remote.ssh_target import SshTarget, forwarding_argv, shared_argv
from shoal.remote.terminal import run_in_terminal, run_on_streams

# `rsync` and `port_forward` are imported where they are used: `exec` needs neither.
if TYPE_CHECKING:
    from shoal.remote.rsync import RsyncEndpoint

_log = logging.getLogger(__name__)

# Until the remote script starts on a new connection: a very busy host is slow.
_START_SECONDS = 20.0
# For a connection that has to be reopened before a command.
RECONNECT_SECONDS = 30.0
# The remote script waits two seconds after each of three signals.
_END_SECONDS = 10.0
# Exit codes above this one mean that a signal ended the local ssh or the remote command.
_SIGNALLED = 128
_SSH_FAILED = 255
# A host that completed a command so recently need not be probed.
_RECENT_SECONDS = 5.0
# For the upload of the few lines of an attached command.
_UPLOAD_SECONDS = 60.0
# The exit code for a precondition that does not hold.
_PRECONDITION_FAILED = 77
# sshd allows ten sessions on a connection, and other Shoal processes may use it too.
_SESSIONS = 6
_SESSION_PAUSE = 0.2
_SESSION_TRIES = 150


class SshRunner:
    """A host reached by OpenSSH. Errors refer to it by `name`.

    For `login_grace` seconds `connect` retries a rejected login: a new host may not have installed
    the key yet. A connection on which no command starts within `session_timeout` seconds counts as
    dead and is replaced. With a `container`, everything except ports refers to the container, and
    each command runs through its runtime's `exec`.
    """

    def __init__(
        self,
        name: str,
        target: SshTarget,
        *,
        login_grace: float = 30.0,
        session_timeout: float = 6.0,
        clock: Clock | None = None,
        container: Container | None = None,
    ) -> None:
        self.name = name
        self.target = target
        self.container = container
        self._login_grace = login_grace
        self._session_timeout = session_timeout
        self._clock = clock or SystemClock()
        self._sessions = asyncio.Semaphore(_SESSIONS)
        self._pool = SessionPool()
        self._last_success = -math.inf

    async def connect(self, *, timeout: float) -> None:
        """Return once the host runs commands; retry until the deadline, except after permanent
        failures: a changed host key, an unusable key, a login that stays rejected."""
        deadline = self._clock.monotonic() + timeout
        await self.open_connection(timeout=timeout)
        if self._clock.monotonic() < self._last_success + _RECENT_SECONDS:
            return
        # The connection may be an old one, which is dead. A command finds out, and `run` then
        # replaces the connection.
        try:
            remaining = max(1.0, deadline - self._clock.monotonic())
            await self.run(":", timeout=remaining, skip_profile=True)
        except TimeoutError:
            raise UnreachableError(
                f"{self.target} does not run commands",
                why="the login succeeded, but a command that does nothing did not end in time",
                node=self.name,
            ) from None

    async def open_connection(self, *, timeout: float) -> None:
        """Return once there is a connection, even an old one that may be dead. Before a command
        that is enough: it replaces a dead connection."""
        await self._open(timeout)

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
        output = CommandOutput(on_line, on_bytes)
        running = self._run(command, env or {}, stdin or b"", output, skip_profile)
        try:
            return await asyncio.wait_for(running, timeout)
        except asyncio.TimeoutError:
            summary = textwrap.shorten(command, 80)
            raise TimeoutError(
                f"{self.name}: did not end within {timeout:g} s: {summary}"
            ) from None

    async def attach(
        self,
        command: str | None,
        *,
        env: Mapping[str, str] | None = None,
        tty: bool = True,
        forwards: Sequence[PortForward] = (),
        precondition: str = "",
    ) -> int:
        """Run a command, or a shell, on this process's terminal, and return its exit code.

        With `tty` the command has a terminal too: Ctrl-C reaches it, and it ends when this process
        does. Without, it uses the streams as they are, and SIGINT or SIGTERM to this process ends
        it.
        """
        if forwards:
            from shoal.remote.port_forward import check_forwarding_allowed, check_local_ports

            check_local_ports(forwards)
            await check_forwarding_allowed(self.name, self.target, forwards)
        argv = forwarding_argv(self.target, forwards) if forwards else shared_argv(self.target)
        argv += ["-tt" if tty else "-T", "--", self.target.host]
        if command is None and not env and not precondition and self.container is None:
            await self.connect(timeout=RECONNECT_SECONDS)
            return await run_in_terminal(argv)
        program_file = await self._upload_program(command, env or {}, precondition)
        await self._pool.clear()  # the host may allow only one session
        code = await self._run_attached(argv, program_file, tty=tty)
        if code == PROFILE_ENDED:
            await self.run(":", timeout=RECONNECT_SECONDS)  # raises if that is the reason
        return code

    async def _run_attached(self, argv: Sequence[str], program_file: str, *, tty: bool) -> int:
        if tty and self.container is not None:
            exec_argv = self.container.exec_argv(tty=True)
            remote = attach_in_container_command(program_file, exec_argv, self._exec_argv)
            return await self._checked(await run_in_terminal([*argv, remote]))
        if tty:
            remote = attach_terminal_command(program_file)
            return await self._checked(await run_in_terminal([*argv, remote]))
        try:
            remote = attach_streams_command(program_file, self._exec_argv)
            code = await run_on_streams([*argv, remote])
        except BaseException:
            await self._end_attached(program_file)
            raise
        await self._checked(code)
        if code > _SIGNALLED:
            await self._end_attached(program_file)
        return code

    async def _checked(self, code: int) -> int:
        """The exit code of an attached command. ssh's own code may also be that of the command, but
        only if the connection is still there."""
        if code == _SSH_FAILED and not await control_master.is_open(self.target):
            raise self._connection_lost()
        return code

    def _connection_lost(self, output: Sequence[str] = ()) -> UnreachableError:
        return UnreachableError(
            f"lost the connection to {self.target} while a command ran",
            why="the host or the network to it went down",
            fix="run it again once the host is back",
            node=self.name,
            output=output,
        )

    async def forward(self, forwards: Sequence[PortForward], opened: Callable[[], None]) -> None:
        from shoal.remote.port_forward import forward_ports

        # Also connects to the jump host, whose errors would not show otherwise.
        await self._open()
        await forward_ports(self.name, self.target, forwards, opened)

    async def put(self, source: Path, target: str, filters: Filters = Filters()) -> None:
        from shoal.remote import rsync

        try:
            await self._transfer(lambda: rsync.put(self._endpoint, source, target, filters))
        except rsync.NoRsyncError:
            if self.container is None:
                raise
            from shoal.remote import tar_copy

            _log.info("%s: the image has no rsync; copying %s by tar", self.name, target)
            host = copy.copy(self)
            host.container = None
            await tar_copy.put(host, self.container, source, target, filters)

    async def get(self, source: str, target: Path, filters: Filters = Filters()) -> None:
        from shoal.remote import rsync

        await self._transfer(lambda: rsync.get(self._endpoint, source, target, filters))

    async def relogin(self) -> None:
        await self._pool.clear()
        await control_master.stop_multiplexing(self.target)

    def in_container(self, container: Container) -> SshRunner:
        runner = copy.copy(self)  # with the same connection and the same limit of sessions
        runner.container = container
        return runner

    async def close(self) -> None:
        """Nothing to do: the shared connection stays open for the next command."""

    async def disconnect(self) -> None:
        """Close the shared connection for all processes: the host is about to be terminated."""
        await self._pool.clear()
        await control_master.close_connection(self.target)

    @property
    def _exec_argv(self) -> list[str]:
        return [] if self.container is None else self.container.exec_argv()

    @property
    def _endpoint(self) -> RsyncEndpoint:
        from shoal.remote.rsync import RsyncEndpoint

        return RsyncEndpoint(self.name, self.target, self.container)

    async def _open(self, timeout: float = RECONNECT_SECONDS) -> None:
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
                # rsync continues where it was: what has been copied is not sent again.
                _log.info("%s: lost the connection during a transfer; retrying", self.name)
                await self._pool.clear()
                await control_master.stop_multiplexing(self.target)
                await self._open()
                await transfer()

    async def _run(
        self,
        command: str,
        env: Mapping[str, str],
        stdin: bytes,
        output: CommandOutput,
        skip_profile: bool,
    ) -> Completed:
        printed: tuple[str, ...] = ()
        async with self._sessions:
            for start_timeout in (self._session_timeout, _START_SECONDS):
                await self._open()
                self._last_success = -math.inf
                outcome = await self._run_in_session(
                    command, env, stdin, output, start_timeout, skip_profile
                )
                if isinstance(outcome, Completed):
                    self._last_success = self._clock.monotonic()
                    return outcome
                # The command never started, so it is safe to try it again on a new connection.
                printed = outcome.output or ("timed out: the session did not start",)
                _log.info("%s: no session on the connection; replacing it", self.name)
                await self._pool.clear()
                await control_master.stop_multiplexing(self.target)
        raise classify(self.name, self.target, printed).error

    async def _run_in_session(
        self,
        command: str,
        env: Mapping[str, str],
        stdin: bytes,
        output: CommandOutput,
        start_timeout: float,
        skip_profile: bool,
    ) -> Completed | NotStarted:
        for _ in range(_SESSION_TRIES):
            outcome = await self._run_once(
                command, env, stdin, output, start_timeout, skip_profile=skip_profile
            )
            if not (isinstance(outcome, NotStarted) and outcome.is_session_limit_reached):
                break
            # Other processes use this connection too, and the host allows no more sessions on it.
            await self._pool.clear()
            await self._clock.sleep(_SESSION_PAUSE)
        if isinstance(outcome, ConnectionLost):
            raise self._connection_lost(outcome.tail)
        if isinstance(outcome, ProfileEnded):
            raise await self._profile_error()
        if isinstance(outcome, NotStarted):
            self._raise_if_no_shell(outcome)
        return outcome

    async def _run_once(
        self,
        command: str,
        env: Mapping[str, str],
        stdin: bytes,
        output: CommandOutput,
        start_timeout: float,
        *,
        skip_profile: bool,
    ) -> Outcome:
        """Run a command in an idle session, or in a new one. A session that has become different
        from a new one ends when it gets a command with a login shell: see run_command.sh."""
        remote = remote_command(self._exec_argv)
        argv = [*shared_argv(self.target), "-T", "--", self.target.host, remote]
        while True:
            idle = self._pool.take(argv)
            session = idle or await Session.open(argv)
            outcome = await session.run(
                command,
                env=env,
                stdin=stdin,
                output=output,
                start_timeout=start_timeout,
                skip_profile=skip_profile,
            )
            if session.is_idle:
                await self._pool.put(argv, session)
            has_ended = isinstance(outcome, NotStarted) and outcome.code >= 0
            if not (idle and has_ended):  # else it had ended before it got the command
                return outcome

    async def _profile_error(self) -> SetupError:
        """What the dotfiles do that keeps a command from running."""
        line = ""
        trace = trace_profile_command()
        traced = await self._run_once(
            trace, {}, b"", CommandOutput(), _START_SECONDS, skip_profile=True
        )
        if isinstance(traced, Completed) and traced.tail:
            line = traced.tail[-1]
        return profile_error(self.name, self.target, line)

    def _raise_if_no_shell(self, outcome: NotStarted) -> None:
        """Raise if the command did not start for another reason than the connection."""
        is_remote = 0 <= outcome.code < 255
        # podman also ends with 255 if it cannot enter the container.
        if self.container is not None and (is_remote or is_container_down(outcome.output)):
            raise container_exec_error(self.name, self.container, outcome.output)
        if is_remote:
            raise no_shell_error(self.name, self.target, outcome)

    async def _upload_program(
        self, command: str | None, env: Mapping[str, str], precondition: str
    ) -> str:
        """Write the program that `attach` runs to a file on the host, and return its path. The
        streams are in use, and a command line would show secrets and need quoting for every shell.
        Only the user can read the file, and it is deleted once read."""
        check = f"(\n{precondition or ':'}\n) </dev/null >/dev/null 2>&1"
        result = await self.run(
            f"{check} || exit {_PRECONDITION_FAILED}\n"
            'umask 077; file=$(mktemp 2>/dev/null || TMPDIR=/tmp mktemp) && cat >"$file" && '
            'echo "$file"',
            stdin=attached_program(command, env),
            timeout=_UPLOAD_SECONDS,
            skip_profile=True,
        )
        if result.code == _PRECONDITION_FAILED:
            raise PreconditionFailedError
        if not result.ok:
            raise SetupError(
                f"could not write a temporary file on {self.target}",
                fix="free space in its /tmp",
                node=self.name,
                output=result.tail,
            )
        return result.tail[-1]

    async def _end_attached(self, program_file: str) -> None:
        """End an attached command. Without a terminal it does not notice that ssh has ended."""
        with suppress_and_log(_log, f"end the command on {self.name}", ShoalError, TimeoutError):
            await self.run(
                end_attached_command(program_file), timeout=_END_SECONDS, skip_profile=True
            )
