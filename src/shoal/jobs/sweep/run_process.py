"""Runs one process in its own process group, with a time limit, and keeps the beginning and the end
of what it prints, however much that is.

Runs on nodes that may not have Shoal: it must import the standard library and modules of the same
kind only.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from shoal.jobs.sweep.run_guard import guard_group

_READ = 2**16
_POLL_S = 0.5
_TERMINATE_S = 10.0
_DRAIN_S = 2.0

_SIGNALS = {
    "SIGSEGV": "segmentation fault",
    "SIGABRT": "abort",
    "SIGBUS": "bus error",
    "SIGFPE": "arithmetic error",
    "SIGILL": "illegal instruction",
    "SIGKILL": "killed, possibly out of memory",
}


class CappedOutput:
    """The first and the last `limit` / 2 bytes of a stream; the rest is counted, not kept."""

    def __init__(self, limit: int) -> None:
        self._half = max(1, limit // 2)
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self.total = 0

    def add(self, chunk: bytes) -> None:
        self.total += len(chunk)
        if len(self._head) < self._half:
            part = self._half - len(self._head)
            self._head += chunk[:part]
            chunk = chunk[part:]
        if not chunk:
            return
        self._tail.append(chunk)
        self._tail_size += len(chunk)
        while self._tail_size - len(self._tail[0]) >= self._half:
            self._tail_size -= len(self._tail.popleft())

    @property
    def dropped(self) -> int:
        return max(0, self.total - len(self._head) - min(self._tail_size, self._half))

    def content(self) -> bytes:
        tail = b"".join(self._tail)[-self._half :]
        if not self.dropped:
            return bytes(self._head) + tail
        note = f"\n[... {self.dropped:,} bytes of output were not kept ...]\n"
        return bytes(self._head) + note.encode() + tail


@dataclass
class Ended:
    """How a process ended. `why` is empty if it succeeded."""

    code: int
    why: str
    timed_out: bool
    seconds: float
    output: bytes
    printed: int
    dropped: int


def run_process(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str] | Mapping[bytes, bytes],
    time_limit: float | None,
    output_limit: int,
) -> Ended:
    """Run to the end or to the limit. Nothing of the process's group is left afterwards."""
    began = time.monotonic()
    output = CappedOutput(output_limit)
    try:
        process = subprocess.Popen(
            argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True, bufsize=0,
        )  # fmt: skip
    except OSError as error:
        why = f"could not start {argv[0]}: {error.strerror or error}"
        return Ended(127, why, False, time.monotonic() - began, b"", 0, 0)
    assert process.stdout is not None
    guard_group(process.pid)
    timed_out = False
    try:
        deadline = None if time_limit is None else began + time_limit
        timed_out = not _read(process, output, deadline)
        if timed_out:
            _signal_group(process.pid, signal.SIGTERM)
            _read(process, output, time.monotonic() + _TERMINATE_S)
    finally:
        # Also what the process left behind in the background.
        _signal_group(process.pid, signal.SIGKILL)
        code = process.wait()
        guard_group(0)
        _drain(process.stdout, output)
        process.stdout.close()
    seconds = time.monotonic() - began
    why = f"stopped after its time limit of {time_limit:g} s" if timed_out else exit_reason(code)
    return Ended(code, why, timed_out, seconds, output.content(), output.total, output.dropped)


def exit_reason(code: int) -> str:
    """Why a process failed, by its exit code; empty if it succeeded."""
    if code == 0:
        return ""
    # A shell reports a signal as 128 plus its number.
    number = -code if code < 0 else code - 128
    try:
        name = signal.Signals(number).name if number > 0 else ""
    except ValueError:
        name = ""
    if not name:
        return f"exit code {code}"
    text = f"{name} ({_SIGNALS[name]})" if name in _SIGNALS else name
    return f"ended by {text}" if code < 0 else f"exit code {code}: ended by {text}"


def _read(process: subprocess.Popen[bytes], output: CappedOutput, deadline: float | None) -> bool:
    """Read until the process has ended. Returns False if the deadline passed before."""
    assert process.stdout is not None
    descriptor = process.stdout.fileno()
    poll = select.poll()
    poll.register(descriptor, select.POLLIN | select.POLLHUP)
    while True:
        left = _POLL_S if deadline is None else deadline - time.monotonic()
        if left <= 0:
            return process.poll() is not None
        if not poll.poll(1000 * min(left, _POLL_S)):
            # Something in the background may hold the pipe open.
            if process.poll() is not None:
                return True
            continue
        chunk = os.read(descriptor, _READ)
        if chunk:
            output.add(chunk)
            continue
        try:  # it closed its output, and may go on
            process.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return False
        return True


def _drain(stream: IO[bytes], output: CappedOutput) -> None:
    """Read what is left in the pipe. A process that left the group may hold it open."""
    poll = select.poll()
    poll.register(stream.fileno(), select.POLLIN | select.POLLHUP)
    deadline = time.monotonic() + _DRAIN_S
    while time.monotonic() < deadline and poll.poll(0):
        if not (chunk := os.read(stream.fileno(), _READ)):
            return
        output.add(chunk)


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
