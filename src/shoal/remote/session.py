"""One session on a connection: starts the local `ssh`, feeds it, and listens until the end.

However a session ends, on this side nothing is left behind, and closing the input makes the far
end (see `wire`) do the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shoal.remote.base import Completed, OnLine, Stream
from shoal.remote.lines import TAIL_LINES
from shoal.remote.wire import Reply, request

# The far end takes three seconds to end a command that does not want to.
_END_SECONDS = 6.0
# Once the command is over, ssh may still wait for a daemon that it left behind. We do not.
_LINGER_SECONDS = 0.1
_READ_SIZE = 1 << 16


@dataclass(frozen=True)
class NotBegun:
    """The command never started. `code` is how ssh ended, negative if it had to be ended."""

    code: int
    said: tuple[str, ...]

    @property
    def for_want_of_sessions(self) -> bool:
        """The connection carries as many sessions as the machine's sshd allows on one."""
        return any("open refused by peer" in line for line in self.said)


@dataclass(frozen=True)
class Lost:
    """The command started, and then the connection broke: nobody knows how it ended."""

    tail: tuple[str, ...]


async def converse(
    argv: Sequence[str],
    command: str,
    *,
    env: Mapping[str, str],
    stdin: bytes,
    on_line: OnLine | None,
    begin_timeout: float,
) -> Completed | NotBegun | Lost:
    """Run `command` over the `ssh` that `argv` starts on `wire.REMOTE_COMMAND`."""
    mark = secrets.token_hex(16)
    payload = request(mark, command, env, stdin)
    tail: deque[str] = deque(maxlen=TAIL_LINES)

    def listener(stream: Stream) -> Reply:
        def take(line: str) -> None:
            tail.append(line)
            if on_line is not None:
                on_line(line, stream)

        return Reply(mark, take)

    out, err = listener("stdout"), listener("stderr")
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        # Ctrl-C at a terminal comes to us; what it means for the command is our decision.
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    begun = asyncio.Event()
    listening = {
        asyncio.ensure_future(_listen(process.stdout, out, begun)),
        asyncio.ensure_future(_listen(process.stderr, err, asyncio.Event())),
    }
    feeding = asyncio.ensure_future(_feed(process.stdin, payload))
    try:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(begun.wait(), begin_timeout)
        if out.begun:
            # Unlike gather, wait lets the listeners go on when we are cancelled: ssh must be
            # able to get rid of what it still has, or it cannot end.
            done, _ = await asyncio.wait(listening, return_when=asyncio.FIRST_EXCEPTION)
            for listener_task in done:
                listener_task.result()
    finally:
        await _end(process, _LINGER_SECONDS if out.code is not None else _END_SECONDS)
        for task in (*listening, feeding):
            task.cancel()
        await asyncio.gather(*listening, feeding, return_exceptions=True)
    return _outcome(await process.wait(), out, err, tuple(tail))


def _outcome(
    code: int, out: Reply, err: Reply, tail: tuple[str, ...]
) -> Completed | NotBegun | Lost:
    if not out.begun:
        return NotBegun(code, (*out.chatter, *err.chatter))
    if out.code is not None:
        return Completed(out.code, tail)
    # 255 is ssh's own code for a broken connection, a negative one means that we ended it; any
    # other is that of the shell at the far end, which did not live to tell.
    if code < 0 or code == 255:
        return Lost(tail)
    return Completed(code, tail)


async def _listen(reader: asyncio.StreamReader, reply: Reply, begun: asyncio.Event) -> None:
    try:
        while reply.code is None and (chunk := await reader.read(_READ_SIZE)):
            reply.feed(chunk)
            if reply.begun:
                begun.set()
        reply.finish()
    finally:
        # At the stream's end there is nothing to wait for any more, begun or not.
        begun.set()


async def _feed(writer: asyncio.StreamWriter, payload: bytes) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        writer.write(payload)
        await writer.drain()


async def _end(process: asyncio.subprocess.Process, patience: float) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(process.wait(), patience)
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
