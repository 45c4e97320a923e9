"""Reductions of any picklable value between processes that know each other's address."""

from __future__ import annotations

import atexit
import functools
import pickle
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

_TIMEOUT = timedelta(hours=1)
_EXIT_TIMEOUT_S = 10.0


class Reducer:
    """Connects `replicas` processes. Rank 0 listens on `root_port`.

    All processes call the same operations in the same order; results may be requested in any order.
    """

    def __init__(self, rank: int, replicas: int, root_host: str, root_port: int) -> None:
        self._rank = rank
        self._replicas = replicas
        self._operations = 0
        self._unread: list[str] = []  # on rank 0, operations that another process may still read
        self._store = dist.TCPStore(
            root_host, root_port, replicas, is_master=rank == 0, timeout=_TIMEOUT
        )
        if rank == 0:
            atexit.register(self._await_readers)

    def allreduce(self, value: Any, reduce_fn: Callable[[Any, Any], Any]) -> Any:
        """Combine the values of all processes, in the order of their ranks."""
        return self.allreduce_async(value, reduce_fn).result()

    def allreduce_async(self, value: Any, reduce_fn: Callable[[Any, Any], Any]) -> _Reduction:
        """As `allreduce`; the result is available from `result()`."""
        self._operations += 1
        key = f"operation-{self._operations}"
        self._store.set(f"{key}/{self._rank}", pickle.dumps(value))
        if self._rank == 0:
            self._delete_what_all_have_read()
            self._unread.append(key)
        return _Reduction(lambda: functools.reduce(reduce_fn, self._values(key)))

    def broadcast(self, value: Any) -> Any:
        """The value of rank 0, in all processes."""
        return self.allreduce(value if self._rank == 0 else None, lambda first, _: first)

    def _values(self, key: str) -> list[Any]:
        keys = [f"{key}/{rank}" for rank in range(self._replicas)]
        values = [pickle.loads(self._store.get(each)) for each in keys]
        self._store.add(f"{key}/readers", 1)
        return values

    def _delete_what_all_have_read(self) -> None:
        for key in list(self._unread):
            if self._store.add(f"{key}/readers", 0) == self._replicas:
                for name in [*range(self._replicas), "readers"]:
                    self._store.delete_key(f"{key}/{name}")
                self._unread.remove(key)

    def _await_readers(self) -> None:
        """The values are in this process: it exits after the others have read them."""
        deadline = time.monotonic() + _EXIT_TIMEOUT_S
        self._delete_what_all_have_read()
        while self._unread and time.monotonic() < deadline:
            time.sleep(0.01)
            self._delete_what_all_have_read()


class _Reduction:
    def __init__(self, compute: Callable[[], Any]) -> None:
        self._compute = compute
        self._result: list[Any] = []

    def result(self) -> Any:
        if not self._result:
            self._result.append(self._compute())
        return self._result[0]
