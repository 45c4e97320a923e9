"""One session on a connection: starts the local `ssh`, sends requests and reads their replies.

However a session ends, no local process is left; closing the input makes the remote script (see
`exec_protocol`) end the command.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from shoal.remote.command_output import CommandOutput
from shoal.remote.exec_protocol import ExecReply, request
from shoal.remote.process import send_signal
from shoal.remote.runner import Completed

# The remote script gives a command three seconds after SIGTERM.
_END_SECONDS = 6.0
# When the command has ended, ssh may still wait for a daemon that it left behind.
LINGER_SECONDS = 0.1


@dataclass(frozen=True)
class NotStarted:
    """The command never started. `code` is the exit code of ssh, negative if it was killed."""

    code: int
    output: tuple[str, ...]

    @property
    def is_session_limit_reached(self) -> bool:
        """Whether the host's sshd allows no more sessions on this connection (MaxSessions)."""
        return any("open refused by peer" in line for line in self.output)


@dataclass(frozen=True)
class ProfileEnded:
    """The user's dotfiles ended or replaced the shell before the command started."""


@dataclass(frozen=True)
class ConnectionLost:
    """The command started, and then the connection broke: its outcome is unknown."""

    tail: tuple[str, ...]


Outcome = Completed | NotStarted | ProfileEnded | ConnectionLost


class Session:
    """An `ssh` process whose remote script, `exec_protocol.remote_command`, runs one command after
    the other."""

    def __init__(self, transport: asyncio.SubprocessTransport, protocol: _SessionProtocol) -> None:
        self._transport = transport
        self._protocol = protocol
        self._stdin = cast(asyncio.WriteTransport, transport.get_pipe_transport(0))

    @classmethod
    async def open(cls, argv: Sequence[str]) -> Session:
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.subprocess_exec(
            lambda: _SessionProtocol(loop),
            *argv,
            # Ctrl-C at a terminal must reach this process only, which decides what it means.
            start_new_session=True,
        )
        return cls(transport, protocol)

    @property
    def exited(self) -> asyncio.Future[None]:
        """Done when the process has exited."""
        return self._protocol.exited

    @property
    def is_idle(self) -> bool:
        """Whether it can run another command."""
        has_completed = self._protocol.reply is not None and self._protocol.reply.code is not None
        is_open = not self._stdin.is_closing() and self._protocol.is_open
        return has_completed and is_open and not self.exited.done()

    async def run(
        self,
        command: str,
        *,
        env: Mapping[str, str],
        stdin: bytes,
        output: CommandOutput,
        start_timeout: float,
        skip_profile: bool = False,
    ) -> Outcome:
        """Run a command. The session ends unless the command completes."""
        mark = secrets.token_hex(16)
        reply, protocol = ExecReply(mark, output), self._protocol
        protocol.begin(reply)
        is_kept = False
        try:
            self._stdin.write(request(mark, command, env, stdin, skip_profile=skip_profile))
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.shield(protocol.started), start_timeout)
            if reply.has_started:
                await asyncio.shield(protocol.completed)
            is_kept = self.is_idle
        finally:
            if not is_kept:
                is_running = reply.has_started and reply.code is None
                await self.close(_END_SECONDS if is_running else LINGER_SECONDS)
        code = self._transport.get_returncode()
        return _outcome(code, reply, output.tail)

    async def close(self, seconds: float) -> None:
        """End the process, by force if it has not exited after so many seconds."""
        if not self._stdin.is_closing():
            self._stdin.abort()
        try:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.shield(self.exited), seconds)
        finally:
            if not self.exited.done():
                send_signal(self._transport.get_pid(), signal.SIGKILL)
                await self.exited
            self._transport.close()


def _outcome(code: int | None, reply: ExecReply, tail: tuple[str, ...]) -> Outcome:
    if reply.code is not None:
        return Completed(reply.code, tail) if reply.is_profile_loaded else ProfileEnded()
    assert code is not None
    if not reply.has_started:
        return NotStarted(code, reply.login_banner)
    # 255 is ssh's code for a broken connection, and a negative one means that it was killed. Any
    # other is that of the remote shell, which was killed before it could report the exit code.
    if code < 0 or code == 255:
        return ConnectionLost(tail)
    return Completed(code, tail)


class _SessionProtocol(asyncio.SubprocessProtocol):
    """Futures for the start of a command, its completion, and the exit of ssh. The first two are
    also done when both streams are closed."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.reply: ExecReply | None = None
        self.started: asyncio.Future[None] = loop.create_future()
        self.completed: asyncio.Future[None] = loop.create_future()
        self.exited: asyncio.Future[None] = loop.create_future()
        self._open_streams = {1, 2}

    @property
    def is_open(self) -> bool:
        """Whether a reply can still arrive on both streams."""
        return len(self._open_streams) == 2

    def begin(self, reply: ExecReply) -> None:
        """Expect the reply of a command."""
        self.reply = reply
        self.started, self.completed = self._loop.create_future(), self._loop.create_future()
        if not self._open_streams:
            _set_done(self.started)
            _set_done(self.completed)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        reply = self.reply
        if reply is None:
            return
        self._parse(lambda: reply.feed(fd, data))
        if reply.has_started:
            _set_done(self.started)
        if reply.code is not None:
            _set_done(self.completed)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        reply = self.reply
        if fd in self._open_streams:
            self._open_streams.remove(fd)
            if reply is not None:
                self._parse(lambda: reply.finish(fd))
        if not self._open_streams:
            _set_done(self.started)
            _set_done(self.completed)

    def _parse(self, feed: Callable[[], None]) -> None:
        try:
            feed()
        except Exception as error:  # from the caller's `output`: raised to the caller
            if not self.completed.done():
                self.completed.set_exception(error)

    def process_exited(self) -> None:
        _set_done(self.exited)


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
