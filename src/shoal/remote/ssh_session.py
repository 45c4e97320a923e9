"""One session on a connection: starts the local `ssh`, sends the request and reads the reply.

However a session ends, no local process is left; closing the input makes the remote script (see
`exec_protocol`) end the command.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from shoal.core.logs import suppress_and_log
from shoal.remote.command_output import CommandOutput
from shoal.remote.exec_protocol import ExecReply, request
from shoal.remote.runner import Completed

_log = logging.getLogger(__name__)

# The remote script gives a command three seconds after SIGTERM.
_END_SECONDS = 6.0
# When the command has ended, ssh may still wait for a daemon that it left behind.
_LINGER_SECONDS = 0.1


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


async def run_over_ssh(
    argv: Sequence[str],
    command: str,
    *,
    env: Mapping[str, str],
    stdin: bytes,
    output: CommandOutput,
    start_timeout: float,
    skip_profile: bool = False,
) -> Completed | NotStarted | ProfileEnded | ConnectionLost:
    """Run `command` over the `ssh` that `argv` starts with `exec_protocol.remote_command`."""
    mark = secrets.token_hex(16)
    payload = request(mark, command, env, stdin, skip_profile=skip_profile)
    loop = asyncio.get_running_loop()
    transport, session = await loop.subprocess_exec(
        lambda: _SessionProtocol(loop, ExecReply(mark, output)),
        *argv,
        # Ctrl-C at a terminal must reach this process only, which decides what it means.
        start_new_session=True,
    )
    reply = session.reply
    pipe = cast(asyncio.WriteTransport, transport.get_pipe_transport(0))
    try:
        pipe.write(payload)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(session.started), start_timeout)
        if reply.has_started:
            await asyncio.shield(session.completed)
    finally:
        if not pipe.is_closing():
            pipe.abort()
        is_running = reply.has_started and reply.code is None
        await _end(transport, session, _END_SECONDS if is_running else _LINGER_SECONDS)
        transport.close()
    code = transport.get_returncode()
    assert code is not None
    return _outcome(code, reply, output.tail)


def _outcome(
    code: int, reply: ExecReply, tail: tuple[str, ...]
) -> Completed | NotStarted | ProfileEnded | ConnectionLost:
    if not reply.has_started:
        return NotStarted(code, reply.login_banner)
    if reply.code is not None and not reply.is_profile_loaded:
        return ProfileEnded()
    if reply.code is not None:
        return Completed(reply.code, tail)
    # 255 is ssh's code for a broken connection, and a negative one means that it was killed. Any
    # other is that of the remote shell, which was killed before it could report the exit code.
    if code < 0 or code == 255:
        return ConnectionLost(tail)
    return Completed(code, tail)


async def _end(
    transport: asyncio.SubprocessTransport, session: _SessionProtocol, seconds: float
) -> None:
    try:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(session.exited), seconds)
    finally:
        if not session.exited.done():
            with suppress_and_log(_log, "kill ssh", ProcessLookupError):
                transport.kill()
            await session.exited


class _SessionProtocol(asyncio.SubprocessProtocol):
    """Futures for the start of the command, its completion, and the exit of ssh. The first two are
    also done when both streams are closed."""

    def __init__(self, loop: asyncio.AbstractEventLoop, reply: ExecReply) -> None:
        self.reply = reply
        self.started: asyncio.Future[None] = loop.create_future()
        self.completed: asyncio.Future[None] = loop.create_future()
        self.exited: asyncio.Future[None] = loop.create_future()
        self._open_streams = {1, 2}

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._parse(lambda: self.reply.feed(fd, data))
        if self.reply.has_started:
            _set_done(self.started)
        if self.reply.code is not None:
            _set_done(self.completed)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd in self._open_streams:
            self._open_streams.remove(fd)
            self._parse(lambda: self.reply.finish(fd))
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
