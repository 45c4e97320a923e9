"""Runs blocking calls in threads that do not keep the program alive: Google holds a call that waits
for an operation for up to two minutes, and Ctrl-C must end the program at once."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class DaemonThreads:
    """At most `limit` threads at a time."""

    def __init__(self, limit: int) -> None:
        self._slots = asyncio.Semaphore(limit)

    async def run(self, call: Callable[[], T]) -> T:
        """The result of a blocking call."""
        async with self._slots:
            loop = asyncio.get_running_loop()
            done: asyncio.Future[T] = loop.create_future()

            def finish(result: T | None, error: BaseException | None) -> None:
                if done.cancelled():
                    return
                if error is not None:
                    done.set_exception(error)
                else:
                    done.set_result(result)  # type: ignore[arg-type]

            def work() -> None:
                result: T | None = None
                error: BaseException | None = None
                try:
                    result = call()
                except BaseException as raised:
                    error = raised
                with contextlib.suppress(RuntimeError):  # the program is ending
                    loop.call_soon_threadsafe(finish, result, error)

            threading.Thread(target=work, name="gcp", daemon=True).start()
            return await done
