"""A generation whose other member is silent can be given up and closed without waiting."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from shoal.train import messages
from tests.polling import until

pytest.importorskip("torch", reason="needs torch")

from shoal.train.worker.generation import (
    Generation,
    PeerLostError,
    connect_store,
    make_store,
)

_HOST = "127.0.0.1"


def _form_pair() -> tuple[Generation, Generation]:
    membership = messages.Generation(1, ("a", "b"), ("n", "n"), (), None, False)
    first, second = Generation(membership, "a"), Generation(membership, "b")
    store = make_store(_HOST)
    with ThreadPoolExecutor() as pool:
        forming = pool.submit(second.form, connect_store(_HOST, store.port), _HOST)
        first.form(store, _HOST)
        forming.result(30)
    return first, second


async def _await_closed() -> None:
    def is_closed() -> bool:
        return "shoal-close" not in [thread.name for thread in threading.enumerate()]

    await until(is_closed, "the groups are gone", timeout=10)


async def test_what_waits_for_a_silent_member_ends_with_its_connections() -> None:
    waiting, silent = _form_pair()
    with ThreadPoolExecutor() as pool:
        exchange = pool.submit(waiting.exchange, "hello")  # the other member never answers
        waiting.fail("its node is lost")
        with pytest.raises(PeerLostError, match="its node is lost"):
            exchange.result(10)
    begun = time.monotonic()
    waiting.close()
    assert time.monotonic() - begun < 1
    await _await_closed()
    silent.fail("the test is over")
    silent.close()
    await _await_closed()


async def test_members_exchange_values_until_the_generation_ends() -> None:
    first, second = _form_pair()
    with ThreadPoolExecutor() as pool:
        other = pool.submit(second.exchange, "b")
        assert first.exchange("a") == ["a", "b"]
        assert other.result(10) == ["a", "b"]
    first.close()
    second.close()
    await _await_closed()
