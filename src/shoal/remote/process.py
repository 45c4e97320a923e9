"""Runs a child process here, its lines arriving as they are printed, and ends it for certain.

Everything that needs a local process goes through `run_process`: a command on this machine, an
`ssh` client, an `rsync`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from shoal.remote.line_buffer import TAIL_LINES, LineBuffer, readable
from shoal.remote.runner import Completed, OnLine, Stream

_GRACE_SECONDS = 3.0
_DRAIN_SECONDS = 0.5
_STREAMS: dict[int, Stream] = {1: "stdout", 2: "stderr"}


async def run_process(
    argv: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
    on_line: OnLine | None = None,
    timeout: float | None = None,
) -> Completed:
    """Run a child in a session of its own. When the caller is cancelled, or the deadline passes
    (`TimeoutError`), the child and all of its session are ended first."""
    loop = asyncio.get_running_loop()
    transport, child = await loop.subprocess_exec(
        lambda: _Child(loop, on_line),
        *argv,
        cwd=cwd,
        env=env,
        stdin=asyncio.subprocess.PIPE if stdin is not None else asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        if stdin is not None:
            pipe = cast(asyncio.WriteTransport, transport.get_pipe_transport(0))
            pipe.write(stdin)
            pipe.write_eof()
        try:
            await asyncio.wait_for(asyncio.shield(child.exited), timeout)
        except asyncio.TimeoutError:  # not the same class before Python 3.11
            raise TimeoutError(f"no end after {timeout:g} s") from None
        # What the child printed is in the pipes by now, but a daemon that it left behind may
        # hold them open: give them a moment and no more.
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(child.closed), _DRAIN_SECONDS)
        code = transport.get_returncode()
        assert code is not None
        return Completed(code if code >= 0 else 128 - code, child.finish())
    except BaseException:
        # Cancelled, too late, or the listener failed: either way nobody waits for it now.
        await _end_session(transport.get_pid(), child)
        raise
    finally:
        transport.close()


class _Child(asyncio.SubprocessProtocol):
    """Splits what a child prints into lines. Told of its exit at once: `Process.wait()` of
    asyncio returns only when the pipes are closed too, in some versions of Python."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_line: OnLine | None) -> None:
        self.exited: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self._on_line = on_line
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._pending = {1: LineBuffer(), 2: LineBuffer()}

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        for line in self._pending[fd].feed(data):
            self._deliver(line, fd)

    def process_exited(self) -> None:
        if not self.exited.done():
            self.exited.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)

    def finish(self) -> tuple[str, ...]:
        """Deliver lines that never ended, and return the last lines of all."""
        for fd, pending in self._pending.items():
            if rest := pending.rest():
                self._deliver(rest, fd)
        return tuple(self._tail)

    def _deliver(self, raw: bytes, fd: int) -> None:
        line = readable(raw)
        self._tail.append(line)
        if self._on_line is not None:
            self._on_line(line, _STREAMS[fd])


async def _end_session(pid: int, child: _Child) -> None:
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, sign)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(child.exited), _GRACE_SECONDS)
    # The group may outlive its leader: whatever of it ignored SIGTERM was killed above.
