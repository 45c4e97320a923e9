"""One session on a connection: starts the local `ssh`, feeds it, and listens until the end.

However a session ends, on this side nothing is left behind, and closing the input makes the far
end (see `wire`) do the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from shoal.remote.exec_protocol import Replies, request
from shoal.remote.runner import Completed, OnLine

# The far end takes three seconds to end a command that does not want to.
_END_SECONDS = 6.0
# When no command runs, ssh may still wait for a daemon that it left behind. We do not.
_LINGER_SECONDS = 0.1


@dataclass(frozen=True)
class NotStarted:
    """The command never started. `code` is how ssh ended, negative if it had to be ended."""

    code: int
    said: tuple[str, ...]

    @property
    def for_want_of_sessions(self) -> bool:
        """The connection carries as many sessions as the machine's sshd allows on one."""
        return any("open refused by peer" in line for line in self.said)


@dataclass(frozen=True)
class ConnectionLost:
    """The command started, and then the connection broke: nobody knows how it ended."""

    tail: tuple[str, ...]


async def run_over_ssh(
    argv: Sequence[str],
    command: str,
    *,
    env: Mapping[str, str],
    stdin: bytes,
    on_line: OnLine | None,
    begin_timeout: float,
    skip_profile: bool = False,
) -> Completed | NotStarted | ConnectionLost:
    """Run `command` over the `ssh` that `argv` starts on `wire.remote_command`."""
    mark = secrets.token_hex(16)
    payload = request(mark, command, env, stdin, skip_profile=skip_profile)
    loop = asyncio.get_running_loop()
    transport, talk = await loop.subprocess_exec(
        lambda: _Talk(loop, Replies(mark, on_line)),
        *argv,
        # Ctrl-C at a terminal comes to us; what it means for the command is our decision.
        start_new_session=True,
    )
    replies = talk.replies
    line_out = cast(asyncio.WriteTransport, transport.get_pipe_transport(0))
    try:
        line_out.write(payload)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(talk.begun), begin_timeout)
        if replies.begun:
            await asyncio.shield(talk.over)
    finally:
        if not line_out.is_closing():
            line_out.abort()
        running = replies.begun and replies.code is None
        await _end(transport, talk, _END_SECONDS if running else _LINGER_SECONDS)
        transport.close()
    code = transport.get_returncode()
    assert code is not None
    return _outcome(code, replies)


def _outcome(code: int, replies: Replies) -> Completed | NotStarted | ConnectionLost:
    if not replies.begun:
        return NotStarted(code, replies.chatter)
    if replies.code is not None:
        return Completed(replies.code, replies.tail)
    # 255 is ssh's own code for a broken connection, a negative one means that we ended it; any
    # other is that of the shell at the far end, which did not live to tell.
    if code < 0 or code == 255:
        return ConnectionLost(replies.tail)
    return Completed(code, replies.tail)


async def _end(transport: asyncio.SubprocessTransport, talk: _Talk, patience: float) -> None:
    try:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(talk.exited), patience)
    finally:
        if not talk.exited.done():
            with contextlib.suppress(ProcessLookupError):
                transport.kill()
            await talk.exited


class _Talk(asyncio.SubprocessProtocol):
    """Tells when the command has begun, when it is over, and when ssh is gone. The first two
    also come true when there is nothing more to hear."""

    def __init__(self, loop: asyncio.AbstractEventLoop, replies: Replies) -> None:
        self.replies = replies
        self.begun: asyncio.Future[None] = loop.create_future()
        self.over: asyncio.Future[None] = loop.create_future()
        self.exited: asyncio.Future[None] = loop.create_future()
        self._open_streams = {1, 2}

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._hear(lambda: self.replies.feed(fd, data))
        if self.replies.begun:
            _settle(self.begun)
        if self.replies.code is not None:
            _settle(self.over)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd in self._open_streams:
            self._open_streams.remove(fd)
            self._hear(lambda: self.replies.finish(fd))
        if not self._open_streams:
            _settle(self.begun)
            _settle(self.over)

    def _hear(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # of whoever listens to the lines: it is for them to see
            if not self.over.done():
                self.over.set_exception(error)

    def process_exited(self) -> None:
        _settle(self.exited)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
