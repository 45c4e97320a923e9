"""Runs a local child process, delivers its lines as they are printed, and makes sure that it ends.

Every local process is run by `run_process`: a command on this machine, an `ssh` client, an `rsync`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from shoal.core.logs import suppress_and_log
from shoal.remote.command_output import CommandOutput
from shoal.remote.runner import Completed, OnBytes, OnLine, Stream

_log = logging.getLogger(__name__)

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
    on_bytes: OnBytes | None = None,
    timeout: float | None = None,
) -> Completed:
    """Run a child process in a new session. If the caller is cancelled, or the deadline passes
    (`TimeoutError`), the child and its whole session are ended first."""
    loop = asyncio.get_running_loop()
    transport, child = await loop.subprocess_exec(
        lambda: _ChildProtocol(loop, CommandOutput(on_line, on_bytes)),
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
            raise TimeoutError(f"did not end within {timeout:g} s") from None
        # The output of the child is in the pipes by now, but a daemon that it left behind may hold
        # them open: wait for a moment only.
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(child.closed), _DRAIN_SECONDS)
        code = transport.get_returncode()
        assert code is not None
        return Completed(code if code >= 0 else 128 - code, child.finish())
    except BaseException:
        # Cancelled, timed out, or `on_line` failed: no caller waits for the process any more.
        await _end_session(transport.get_pid(), child)
        raise
    finally:
        transport.close()


class _ChildProtocol(asyncio.SubprocessProtocol):
    """Delivers the output of a child. `exited` is done when the child exits: in some versions of
    Python `Process.wait()` returns only when the pipes are closed too."""

    def __init__(self, loop: asyncio.AbstractEventLoop, output: CommandOutput) -> None:
        self.exited: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self._output = output

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._output.feed(data, _STREAMS[fd])

    def process_exited(self) -> None:
        if not self.exited.done():
            self.exited.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)

    def finish(self) -> tuple[str, ...]:
        """Deliver incomplete lines, and return the last lines of both streams."""
        for stream in _STREAMS.values():
            self._output.finish(stream)
        return self._output.tail


def send_signal(pid: int, number: signal.Signals) -> None:
    """Signal a child of asyncio that may have exited. `Process.terminate` would first reap one that
    has just exited, and asyncio then prints that it does not know it."""
    with suppress_and_log(_log, f"signal process {pid}", ProcessLookupError):
        os.kill(pid, number)


async def _end_session(pid: int, child: _ChildProtocol) -> None:
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        with suppress_and_log(_log, f"signal process group {pid}", ProcessLookupError):
            os.killpg(pid, signal_number)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(child.exited), _GRACE_SECONDS)
    # The group may outlive its leader: SIGKILL above ended the processes that ignored SIGTERM.
