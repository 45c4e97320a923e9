"""Workers whose group is formed again and again, as at a rescale, without new processes: that takes
a fraction of a second, where a worker that joins takes seconds to start."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import psutil

from shoal.train import messages
from tests.train.local_job import Usage, usage_of

_Kind = TypeVar("_Kind", messages.Hello, messages.Store, messages.Formed, messages.Switched)

_DEADLINE_S = 60.0


class ReformedJob:
    def __init__(self, directory: Path, workers: tuple[str, ...]) -> None:
        self.workers = workers
        self.number = 0
        self._directory = directory
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._connections: dict[str, socket.socket] = {}
        self._received: queue.Queue[messages.WorkerMessage] = queue.Queue()

    def reform(self) -> None:
        """One more generation of the same workers. Returns when all train in it."""
        self.number += 1
        joiners = self.workers if self.number == 1 else ()
        self._announce(self.workers[:1], joiners, None)
        (store,) = self._await(messages.Store, self.workers[:1])
        self._announce(self.workers, joiners, messages.StoreAddress(store.host, store.port))
        self._await(messages.Formed, self.workers)
        for worker in self.workers:
            self._send(worker, messages.Commit(self.number))
        self._await(messages.Switched, self.workers)

    def usage(self, worker: str) -> Usage:
        return usage_of(psutil.Process(self._processes[worker].pid))

    def _announce(
        self,
        to: tuple[str, ...],
        joiners: tuple[str, ...],
        store: messages.StoreAddress | None,
    ) -> None:
        nodes = tuple("node" for _ in self.workers)
        for worker in to:
            generation = messages.Generation(
                self.number, self.workers, nodes, joiners, store, recover=False
            )
            self._send(worker, generation)

    def _send(self, worker: str, message: messages.ControllerMessage) -> None:
        self._connections[worker].sendall(message.to_json().encode() + b"\n")

    def _await(self, kind: type[_Kind], workers: tuple[str, ...]) -> list[_Kind]:
        """That message from each of these workers, of the current generation."""
        answers: dict[str, _Kind] = {}
        deadline = time.monotonic() + _DEADLINE_S
        while set(answers) != set(workers):
            try:
                message = self._received.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                logs = [path.read_text()[-2000:] for path in self._directory.glob("*.log")]
                raise AssertionError(f"no {kind.__name__} of all {workers}: {logs}") from None
            assert not isinstance(message, (messages.FormFailed, messages.Lost)), message
            if isinstance(message, kind):
                answers[message.worker] = message
        return list(answers.values())

    def _listen(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=self._receive, args=(connection,), daemon=True).start()

    def _receive(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection.makefile("r") as lines:
            for line in lines:
                message = messages.WorkerMessage.from_json(line)
                self._connections[message.worker] = connection
                self._received.put(message)

    @contextlib.contextmanager
    def run(self, script: Path, environment: dict[str, str]) -> Iterator[None]:
        path = f"/tmp/shoal-test-{os.getpid()}-{id(self):x}.sock"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(path)
        listener.listen()
        threading.Thread(target=self._listen, args=(listener,), daemon=True).start()
        try:
            for worker in self.workers:
                self._start(worker, script, {**environment, "SHOAL_TRAIN_SOCKET": path})
            self._await(messages.Hello, self.workers)
            yield
        finally:
            for process in self._processes.values():
                process.kill()
                process.wait()
            listener.close()
            Path(path).unlink()

    def _start(self, worker: str, script: Path, environment: dict[str, str]) -> None:
        with (self._directory / f"{worker}.log").open("wb") as log:
            self._processes[worker] = subprocess.Popen(
                [sys.executable, "-m", "shoal.train.worker", str(script)],
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                    "SHOAL_TRAIN_WORKER": worker,
                    "SHOAL_TRAIN_HOST": "127.0.0.1",
                    "ADAPTDL_JOB_ID": "test",
                    "ADAPTDL_SHARE_PATH": str(self._directory),
                    **environment,
                },
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._directory,
            )
