"""Calls a class that may block, from one thread that is its own, with a deadline for every call.

A thread cannot be ended. While a call that missed its deadline has not returned, later ones fail at
once; after some minutes the thread is given up, and its owner makes another.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from shoal.core.clock import Clock
from shoal.core.errors import TransientError
from shoal.providers.external.thread_output import log_output_of_this_thread

_log = logging.getLogger(__name__)

T = TypeVar("T")

# A call that has not returned for this long never will.
_ABANDONED_SECONDS = 600.0


class CallTimeoutError(TransientError):
    """A call has not returned, and may still have an effect."""


class CallThread:
    """One thread and the calls that wait for it. The thread starts with the first call."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._lock = asyncio.Lock()
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._late: tuple[str, float, concurrent.futures.Future[Any]] | None = None

    @property
    def is_abandoned(self) -> bool:
        """Whether a call has not returned for so long that it never will."""
        if self._late is None or self._late[2].done():
            return False
        return self._clock.monotonic() - self._late[1] > _ABANDONED_SECONDS

    async def call(self, what: str, function: Callable[[], T], timeout: float) -> T:
        """The result of `function`, in the thread. Raises `CallTimeoutError` if it does not return
        in time, or an earlier one has not returned yet."""
        async with self._lock:
            self._raise_if_late()
            future: concurrent.futures.Future[T] = concurrent.futures.Future()
            began = self._clock.monotonic()
            self._submit(lambda: _complete(future, function))
            self._late = (what, began, future)
            waiting = asyncio.wrap_future(future)
            done, _ = await asyncio.wait([waiting], timeout=timeout)
            if not done:
                waiting.add_done_callback(_ignore)
                raise CallTimeoutError(
                    f"{what} has not returned within {timeout:.0f} s",
                    why="the node provider class does not answer",
                    fix="try again later; if it goes on, look into the class or its cloud",
                )
            self._late = None
            return waiting.result()

    def close(self, last: Callable[[], object] | None = None) -> None:
        """Let the thread end once it has nothing to do, after a last call."""
        if last is not None and self._thread is not None:
            self._calls.put(lambda: _complete(concurrent.futures.Future(), last))
        self._calls.put(None)

    def _raise_if_late(self) -> None:
        if self._late is None or self._late[2].done():
            self._late = None
            return
        what, began, _ = self._late
        raise CallTimeoutError(
            f"{what} has not returned for {self._clock.monotonic() - began:.0f} s",
            why="the node provider class handles one call at a time",
            fix="try again later; if it goes on, look into the class or its cloud",
        )

    def _submit(self, call: Callable[[], None]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._calls.put(call)

    def _run(self) -> None:
        log_output_of_this_thread()
        while (call := self._calls.get()) is not None:
            call()


def _complete(future: concurrent.futures.Future[T], function: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(function())
    except BaseException as error:  # such classes also raise SystemExit
        future.set_exception(error)


def _ignore(waiting: asyncio.Future[Any]) -> None:
    """Retrieve the outcome of a call that is no longer waited for."""
    if not waiting.cancelled() and (error := waiting.exception()) is not None:
        _log.info("a call that was late has failed: %s", error)
