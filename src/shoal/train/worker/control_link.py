"""The worker's connection to the agent on its node: JSON lines over a unix socket."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable

from shoal.train import messages

_CONNECT_TIMEOUT = 30.0


class ControlLink:
    """Sends from any thread. Messages are received in a thread of their own and kept until
    `handle_with` says who handles them.

    The agent starts this process and reaps it. If the agent is gone, this process ends itself:
    nothing else would.
    """

    def __init__(self, path: str, worker: str) -> None:
        self.worker = worker
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(_CONNECT_TIMEOUT)
        self._socket.connect(path)
        self._socket.settimeout(None)
        self._sending = threading.Lock()
        self._received = threading.Condition()
        self._kept: list[messages.ControllerMessage] = []
        self._handler: Callable[[messages.ControllerMessage], None] | None = None
        self._node_ends_at: float | None = None
        threading.Thread(target=self._receive, name="shoal-control", daemon=True).start()

    def send(self, message: messages.WorkerMessage) -> None:
        line = message.to_json().encode() + b"\n"
        try:
            with self._sending:
                self._socket.sendall(line)
        except OSError:
            self._agent_is_gone()

    def seconds_left(self) -> float | None:
        """Until the node goes away; None if that is not announced."""
        ends_at = self._node_ends_at
        return None if ends_at is None else max(0.0, ends_at - time.monotonic())

    def handle_with(self, handler: Callable[[messages.ControllerMessage], None]) -> None:
        """Hand all messages, those received before too, to `handler`."""
        with self._received:
            for message in self._kept:
                handler(message)
            self._kept = []
            self._handler = handler

    def await_generation(self) -> messages.Generation:
        """Wait for the first generation. It is handled later, with the other messages."""

        def found() -> messages.Generation | None:
            return next((m for m in self._kept if isinstance(m, messages.Generation)), None)

        with self._received:
            while (generation := found()) is None:
                self._received.wait()
            return generation

    def _receive(self) -> None:
        try:
            with self._socket.makefile("r", encoding="utf-8") as lines:
                for line in lines:
                    self._take(messages.ControllerMessage.from_json(line))
        except OSError:
            pass
        self._agent_is_gone()

    def _take(self, message: messages.ControllerMessage) -> None:
        if isinstance(message, messages.Notice):
            self._node_ends_at = time.monotonic() + message.seconds
            return
        with self._received:
            if self._handler is None:
                self._kept.append(message)
                self._received.notify_all()
            else:
                self._handler(message)

    @staticmethod
    def _agent_is_gone() -> None:
        os._exit(1)
