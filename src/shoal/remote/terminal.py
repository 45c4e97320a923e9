"""Child processes that use this process's terminal or streams, and the signals that they need."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence

from shoal.core.logs import suppress_and_log

_log = logging.getLogger(__name__)

# How long a command that was interrupted may take to exit.
_EXIT_SECONDS = 10.0


async def run_in_terminal(argv: Sequence[str], env: Mapping[str, str] | None = None) -> int:
    """Run a child that controls the terminal, and return its exit code."""
    with sigint_left_to_child():
        process = await asyncio.create_subprocess_exec(*argv, env=env)
        return await _wait(process)


async def run_on_streams(
    argv: Sequence[str], env: Mapping[str, str] | None = None, *, new_session: bool = False
) -> int:
    """Run a child on this process's streams, and return its exit code. On SIGINT or SIGTERM the
    child is ended, and the code is 128 plus the signal's number. In a new session, its own children
    end with it."""
    with termination_signal() as received:
        process = await asyncio.create_subprocess_exec(
            *argv, env=env, start_new_session=new_session
        )
        exited = asyncio.ensure_future(_wait(process))
        either: set[asyncio.Future[int]] = {exited, received}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            exited.cancel()
            raise
        if received.done():
            if new_session:
                await _end_session(process, exited, received.result())
            exited.cancel()
            return 128 + received.result()
        return exited.result()


async def _end_session(
    process: asyncio.subprocess.Process, exited: asyncio.Future[int], signal_number: int
) -> None:
    """Pass the signal on to the child and its children, and kill what is left of them when the
    child has exited or time is up. Background jobs of a shell, for example, ignore SIGINT."""
    for number in (signal_number, signal.SIGKILL):
        with suppress_and_log(_log, "end the child's processes", ProcessLookupError):
            os.killpg(process.pid, number)
        await asyncio.wait({exited}, timeout=_EXIT_SECONDS)


async def _wait(process: asyncio.subprocess.Process) -> int:
    try:
        code = await process.wait()
    except BaseException:
        with suppress_and_log(_log, "end the child process", ProcessLookupError):
            process.terminate()
        raise
    return code if code >= 0 else 128 - code


@contextlib.contextmanager
def sigint_left_to_child() -> Iterator[None]:
    """While a child controls the terminal, Ctrl-C is for the child; this process waits for it.

    A handler that does nothing, instead of ignoring the signal: a child would inherit that and
    ignore Ctrl-C itself.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread gets SIGINT, and only it may set handlers
        return
    previous = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


@contextlib.contextmanager
def termination_signal() -> Iterator[asyncio.Future[int]]:
    """A future for the number of the SIGINT or SIGTERM that arrives. Inside the context such a
    signal has no other effect."""
    loop = asyncio.get_running_loop()
    received: asyncio.Future[int] = loop.create_future()
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def on_signal(number: int) -> None:
        if not received.done():
            received.set_result(number)

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    previous = {n: handler for n, handler in handlers.items() if handler is not signal.SIG_IGN}
    for number in previous:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield received
    finally:
        for number, handler in previous.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
