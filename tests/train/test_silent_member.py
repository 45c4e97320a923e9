"""A worker whose peer falls silent while they switch to a generation, as if that machine had lost
its power: the worker here is real, the peer connects and never answers."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from shoal.train import messages
from shoal.train.messages import StoreAddress
from tests.polling import until

pytest.importorskip("torch", reason="needs torch")

from shoal.train.worker.generation import Generation, connect_store
from shoal.train.worker.session import Session

_HOST = "127.0.0.1"
_PAIR = messages.Generation(1, ("a", "b"), ("m", "n"), ("a", "b"), None, False)
_ALONE = messages.Generation(2, ("a",), ("m",), ("a",), None, True)
M = TypeVar("M", bound=messages.WorkerMessage)


class Controller:
    """What the worker says, and what it is answered."""

    worker = "a"

    def __init__(self) -> None:
        self.said: queue.Queue[messages.WorkerMessage] = queue.Queue()
        self.answer: Callable[[messages.ControllerMessage], None] = lambda _: None

    def send(self, message: messages.WorkerMessage) -> None:
        self.said.put(message)

    def handle_with(self, handler: Callable[[messages.ControllerMessage], None]) -> None:
        self.answer = handler

    def expect(self, kind: type[M]) -> M:
        while True:
            message = self.said.get(timeout=30)
            if isinstance(message, kind):
                return message

    def announce(self, generation: messages.Generation) -> StoreAddress:
        """Announce a generation with its store, which the worker makes."""
        self.answer(generation)
        store = self.expect(messages.Store)
        address = StoreAddress(store.host, store.port)
        values: dict[str, Any] = {**vars(generation), "store": address}
        self.answer(messages.Generation(**values))
        return address


def _threads(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


async def test_a_member_that_falls_silent_during_the_switch_is_left_behind() -> None:
    controller = Controller()
    session = Session("a", _HOST, controller)  # type: ignore[arg-type]
    session.rendezvous.use_backend("gloo")
    store = controller.announce(_PAIR)
    silent = Generation(_PAIR, "b")
    peer_store = connect_store(store.host, store.port)
    peer_store.add("members", 1)
    silent.form(peer_store, _HOST)
    controller.expect(messages.Formed)

    switching = threading.Thread(target=session.boundary, daemon=True)
    switching.start()
    controller.expect(messages.Prepared)
    controller.answer(messages.Commit(1))
    controller.answer(messages.Abort(1))
    controller.announce(_ALONE)
    controller.expect(messages.Formed)
    controller.answer(messages.Commit(2))
    assert controller.expect(messages.Switched).generation == 2
    silent.fail("the test is over")
    silent.close()
    await until(lambda: not _threads("shoal-close") and not switching.is_alive(), "they end")
