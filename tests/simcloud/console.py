"""A command that runs on a machine, started from its console, so with no need of SSH."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

from tests.simcloud.processes import Result, finish


class Running:
    """A command that runs on a machine; signals go to the command itself."""

    def __init__(self, door: asyncio.subprocess.Process, what: str) -> None:
        self._door = door  # the process through which the command was started
        self._what = what

    @property
    def stdin(self) -> asyncio.StreamWriter:
        assert self._door.stdin is not None
        return self._door.stdin

    @property
    def stdout(self) -> asyncio.StreamReader:
        assert self._door.stdout is not None
        return self._door.stdout

    @property
    def stderr(self) -> asyncio.StreamReader:
        assert self._door.stderr is not None
        return self._door.stderr

    def send_signal(self, number: signal.Signals) -> None:
        """Signal the command, as its own machine would; the door passes its end on."""
        door = self._door.pid
        children = Path(f"/proc/{door}/task/{door}/children")
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            for pid in children.read_text().split() or [str(door)]:  # no child: it has not begun
                os.kill(int(pid), number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    async def wait(self, timeout: float = 120) -> int:
        return await asyncio.wait_for(self._door.wait(), timeout)

    async def finish(self, stdin: str = "", timeout: float = 120) -> Result:
        """Return how it ended and what it printed; kill it when the deadline passes."""
        return await finish(self._door, stdin, timeout, self._what, self.kill)
