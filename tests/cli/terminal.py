"""Runs the real `shoal` command on a terminal of its own, for tests that type at it."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import subprocess
import time
from collections.abc import Iterator

from tests.cli.shoal_command import SHOAL, Home

CTRL_C, CTRL_D = "\x03", "\x04"


class Terminal:
    """A terminal, and the command that runs on it."""

    def __init__(self, descriptor: int, process: subprocess.Popen[bytes]) -> None:
        self._descriptor = descriptor
        self._process = process
        self.screen = ""

    def shows(self, text: str, timeout: float = 60) -> None:
        """Wait until the screen has this text."""
        deadline = time.monotonic() + timeout
        while text not in self.screen:
            assert time.monotonic() < deadline, f"{text!r} is not in {self.screen!r}"
            assert self._read(), f"{text!r} is not in {self.screen!r}"

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    def exit_code(self, timeout: float = 90) -> int:
        """Wait for the command to end."""
        deadline = time.monotonic() + timeout
        while self._read():
            assert time.monotonic() < deadline, f"it still runs: {self.screen!r}"
        return self._process.wait(timeout=30)

    def _read(self) -> bool:
        """Read what there is, after a moment at most. Returns whether the terminal is open."""
        if not select.select([self._descriptor], [], [], 0.2)[0]:
            return True
        try:
            data = os.read(self._descriptor, 65536)
        except OSError:  # the command has not opened the terminal yet, or closed it
            time.sleep(0.02)
            return self._process.poll() is None
        self.screen += data.decode(errors="replace")
        return bool(data)


@contextlib.contextmanager
def terminal(home: Home, *args: str, **env: str) -> Iterator[Terminal]:
    """Run `shoal` on a new terminal, which is its controlling terminal."""
    parent, child = pty.openpty()
    # The first terminal that a session leader opens is its controlling terminal.
    script = 'exec "$@" <"$0" >"$0" 2>&1'
    process = subprocess.Popen(
        ["sh", "-c", script, os.ttyname(child), SHOAL, *args],
        env={**home.env, **env},
        start_new_session=True,
    )
    os.close(child)
    try:
        yield Terminal(parent, process)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(parent)
