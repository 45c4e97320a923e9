"""Collectives over any picklable value, by AdaptDL's names."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce as fold
from typing import Any

from shoal.train.worker.runtime import current_session

_initialized = False


def initialize(
    master_addr: str | None = None,
    master_port: int | None = None,
    replica_rank: int | None = None,
    num_replicas: int | None = None,
) -> None:
    """Join the other workers."""
    global _initialized
    if _initialized:
        raise RuntimeError("collectives are initialized already")
    _initialized = True
    session = current_session()
    method = None
    if master_addr is not None:
        method = f"tcp://{master_addr}:{master_port or 0}"
    session.rendezvous.set_environment(method, num_replicas, replica_rank)
    session.rendezvous.await_formed()


def add(a: Any, b: Any) -> Any:
    return a + b


def allreduce(value: Any, reduce_fn: Callable[[Any, Any], Any] = add) -> Any:
    """Combine the values of all workers, in the order of their ranks."""
    return current_session().collective(value, lambda values: fold(reduce_fn, values))


class _Result:
    def __init__(self, value: Any) -> None:
        self._value = value

    def result(self) -> Any:
        return self._value


def allreduce_async(value: Any, reduce_fn: Callable[[Any, Any], Any] = add) -> _Result:
    """As `allreduce`, by the name of the asynchronous one: it has the result when it returns."""
    return _Result(allreduce(value, reduce_fn))


def broadcast(value: Any) -> Any:
    """The value of rank 0, on all workers."""
    return current_session().collective(value, lambda values: values[0])
