"""Blocking calls in threads that do not keep the program alive."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time

import pytest

from shoal.providers.gcp.daemon_threads import DaemonThreads


async def test_results_and_errors_of_calls_are_returned() -> None:
    threads = DaemonThreads(2)
    assert await threads.run(lambda: 42) == 42

    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await threads.run(fail)


async def test_no_more_calls_run_at_once_than_the_limit() -> None:
    threads = DaemonThreads(2)
    lock, running, most = threading.Lock(), 0, 0

    def call() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.02)
        with lock:
            running -= 1

    await asyncio.gather(*(threads.run(call) for _ in range(8)))
    assert most == 2


def test_a_program_ends_while_a_call_is_waiting() -> None:
    program = """
import asyncio, time
from shoal.providers.gcp.daemon_threads import DaemonThreads

async def main():
    waiting = asyncio.ensure_future(DaemonThreads(1).run(lambda: time.sleep(60)))
    await asyncio.sleep(0.1)
    waiting.cancel()

asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", program], timeout=30, check=True)
