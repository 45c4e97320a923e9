"""Child processes that use our own terminal, or our own streams, and what they need from us."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence


async def in_terminal(argv: Sequence[str], env: Mapping[str, str] | None = None) -> int:
    """Run a child that owns the terminal, and return its exit code."""
    with interrupts_left_to_the_child():
        process = await asyncio.create_subprocess_exec(*argv, env=env)
        return await _end_of(process)


async def with_streams(argv: Sequence[str]) -> int:
    """Run a child on our own streams, and return its exit code. When we are asked to end, it is
    ended, and the code says by which signal."""
    with interruption() as asked:
        process = await asyncio.create_subprocess_exec(*argv)
        ended = asyncio.ensure_future(_end_of(process))
        either: set[asyncio.Future[int]] = {ended, asked}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            ended.cancel()
            raise
        if asked.done():
            ended.cancel()
            return 128 + asked.result()
        return ended.result()


async def _end_of(process: asyncio.subprocess.Process) -> int:
    try:
        code = await process.wait()
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        raise
    return code if code >= 0 else 128 - code


@contextlib.contextmanager
def interrupts_left_to_the_child() -> Iterator[None]:
    """While a child owns the terminal, Ctrl-C is its business: we wait for what it makes of it.

    A handler that does nothing, rather than ignoring the signal, because a child would inherit
    the latter and be deaf to Ctrl-C itself.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread gets interrupts, and only it may set them aside
        return
    previous = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


@contextlib.contextmanager
def interruption() -> Iterator[asyncio.Future[int]]:
    """A future that gets the number of the signal by which we are asked to end. While it is
    there, such a signal does nothing else."""
    loop = asyncio.get_running_loop()
    asked: asyncio.Future[int] = loop.create_future()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def notice(sign: int) -> None:
        if not asked.done():
            asked.set_result(sign)

    found = {sign: signal.getsignal(sign) for sign in (signal.SIGINT, signal.SIGTERM)}
    previous = {sign: handler for sign, handler in found.items() if handler is not signal.SIG_IGN}
    for sign in previous:
        loop.add_signal_handler(sign, notice, sign)
    try:
        yield asked
    finally:
        for sign, handler in previous.items():
            loop.remove_signal_handler(sign)
            signal.signal(sign, handler)
