"""A training job on this machine without Ray: the real membership rules and real workers.

What the node agents and the controller actor do in a cluster, one thread does here.
"""

from __future__ import annotations

import contextlib
import os
import queue
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from shoal.train import messages
from shoal.train.job.actions import (
    Action,
    Exit,
    Finish,
    KillWorker,
    Record,
    RequestWorker,
    Send,
    SignalWorker,
    StartWorker,
)
from shoal.train.job.membership import Membership
from shoal.train.job.sizing import SIZE
from shoal.train.job.state import Settings

_POLL_S = 0.02
_FROZEN_S = 1.0


@dataclass(frozen=True)
class Usage:
    threads: int
    descriptors: int
    memory: int


def usage_of(process: psutil.Process) -> Usage:
    return Usage(process.num_threads(), process.num_fds(), process.memory_info().rss)


class LocalJob:
    """Runs `script` until it ends or the block is left: with `minimum` workers in the first
    generation, and up to `workers` in all."""

    def __init__(
        self,
        script: Path,
        directory: Path,
        *,
        workers: int = 1,
        minimum: int = 1,
        args: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
        restarts: bool = False,
        detects: bool = False,
        objective: str = SIZE,
    ) -> None:
        self.messages: list[messages.WorkerMessage] = []
        self.records: list[Record] = []
        self.finish: Finish | None = None
        self._script = script
        self._args = args
        self._directory = directory
        self._environment = environment or {}
        self._membership = Membership(
            Settings(
                max_workers=workers,
                min_workers=minimum,
                restarts=restarts,
                detects=detects,
                objective=objective,
            )
        )
        self._requests: queue.Queue[Callable[[], list[Action]]] = queue.Queue()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._cut_off: list[subprocess.Popen[bytes]] = []
        self._sockets: dict[str, socket.socket] = {}
        self._frozen_since: dict[str, float] = {}
        self._changed = threading.Condition()
        self._closing = False
        self._selector = selectors.DefaultSelector()
        self._path = f"/tmp/shoal-test-{os.getpid()}-{id(self):x}.sock"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self._path)
        self._listener.listen()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> LocalJob:
        self._requests.put(lambda: self._membership.start(time.monotonic()))
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._closing = True
        self._thread.join(10)
        for process in (*self._processes.values(), *self._cut_off):
            process.kill()
            process.wait()
        self._listener.close()
        Path(self._path).unlink(missing_ok=True)

    # --- what a test does ---

    def resize(self, workers: int) -> None:
        self._requests.put(lambda: self._membership.resize(workers, time.monotonic()))

    def stop(self) -> None:
        self._requests.put(lambda: self._membership.stop(time.monotonic()))

    def signal(self, worker: str, number: int = signal.SIGKILL) -> None:
        self._processes[worker].send_signal(number)

    def signal_if_alive(self, worker: str, number: int) -> None:
        if (process := self._processes.get(worker)) is not None:
            process.send_signal(number)

    def cut_off(self, worker: str) -> None:
        """The node of that worker does not answer any more, and nothing tells of its processes."""
        self._requests.put(lambda: self._lose_node(worker))

    def usage(self, worker: str) -> Usage:
        return usage_of(psutil.Process(self._processes[worker].pid))

    def drain(self, worker: str, seconds: float = 120.0) -> None:
        """The node of that worker ends in so many seconds."""

        def announce() -> list[Action]:
            now = time.monotonic()
            return self._membership.node_draining(f"node-{worker}", now + seconds, now)

        self._requests.put(announce)

    def members(self) -> tuple[str, ...]:
        running = self._membership.state.running
        return running.members if running is not None else ()

    def processes(self) -> list[str]:
        """The workers that have a process."""
        return list(self._processes)

    def wait_until(self, condition: Callable[[], bool], timeout: float = 60.0) -> None:
        deadline = time.monotonic() + timeout
        with self._changed:
            while not condition():
                left = deadline - time.monotonic()
                if left <= 0 or (self.finish is not None and not condition()):
                    raise AssertionError(f"{self.describe()}")
                self._changed.wait(min(left, 0.2))

    def wait_for_workers(self, count: int, timeout: float = 60.0) -> None:
        def trained_by_all() -> bool:
            running = self._membership.state.running
            if running is None or len(running.members) != count:
                return False
            switched = {
                m.worker
                for m in self.messages
                if isinstance(m, messages.Switched) and m.generation == running.generation
            }
            return switched >= set(running.members)

        self.wait_until(trained_by_all, timeout)

    def step(self) -> int:
        """The last step that is known of."""
        return self._membership.state.step

    def wait_for_step(self, step: int, timeout: float = 60.0) -> None:
        """Until rank 0 has reported that it is past `step`."""
        self.wait_until(lambda: self._membership.state.step >= step, timeout)

    def wait_for_end(self, timeout: float = 120.0) -> Finish:
        self.wait_until(lambda: self.finish is not None, timeout)
        assert self.finish is not None
        return self.finish

    def output(self, worker: str) -> str:
        return (self._directory / f"{worker}.log").read_text()

    def describe(self) -> str:
        logs = "\n".join(
            f"--- {path.name}\n{path.read_text()[-2000:]}"
            for path in sorted(self._directory.glob("w*.log"))
        )
        records = "\n".join(f"{r.kind}: {r.text} {dict(r.values)}" for r in self.records[-20:])
        return f"finish: {self.finish}\n{records}\n{self.messages[-12:]}\n{logs}"

    # --- the thread ---

    def _run(self) -> None:
        while not self._closing and self.finish is None:
            while not self._requests.empty():
                self._perform(self._requests.get()())
            for key, _ in self._selector.select(_POLL_S):
                if key.fileobj is self._listener:
                    connection, _ = self._listener.accept()
                    self._selector.register(connection, selectors.EVENT_READ, bytearray())
                else:
                    self._receive(key)
            self._look_after_processes()
            self._perform(self._membership.tick(time.monotonic()))
            with self._changed:
                self._changed.notify_all()

    def _receive(self, key: selectors.SelectorKey) -> None:
        connection, buffer = key.fileobj, key.data
        assert isinstance(connection, socket.socket)
        try:
            data = connection.recv(65536)
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(connection)
            connection.close()
            return
        buffer.extend(data)
        *lines, rest = bytes(buffer).split(b"\n")
        buffer[:] = rest
        for line in lines:
            message = messages.WorkerMessage.from_json(line.decode())
            self._sockets[message.worker] = connection
            self.messages.append(message)
            self._perform(self._membership.message(message, time.monotonic()))

    def _look_after_processes(self) -> None:
        now = time.monotonic()
        for worker, process in list(self._processes.items()):
            status = process.poll()
            frozen = worker in self._frozen_since
            if status is not None:
                del self._processes[worker]
                self._sockets.pop(worker, None)
                self._frozen_since.pop(worker, None)
                exit = Exit(signal=-status, frozen=frozen) if status < 0 else Exit(code=status)
                self._perform(self._membership.exited(worker, exit, now))
            elif _is_stopped(process.pid):
                if now - self._frozen_since.setdefault(worker, now) > _FROZEN_S:
                    process.kill()
            elif frozen:
                del self._frozen_since[worker]

    def _lose_node(self, worker: str) -> list[Action]:
        if (process := self._processes.pop(worker, None)) is not None:
            process.send_signal(signal.SIGSTOP)  # a host that is cut off closes no connection
            self._cut_off.append(process)
        return self._membership.node_lost(f"node-{worker}", time.monotonic())

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case RequestWorker():
                    node = f"node-{action.worker}"
                    self._perform(self._membership.placed(action.worker, node, time.monotonic()))
                case StartWorker():
                    self._start(action)
                case KillWorker():
                    if action.worker in self._processes:
                        self._processes[action.worker].kill()
                case SignalWorker():
                    if action.worker in self._processes:
                        self._processes[action.worker].send_signal(action.signal)
                case Send():
                    if action.worker in self._sockets:
                        line = action.message.to_json().encode() + b"\n"
                        with contextlib.suppress(OSError):  # its exit is reported soon
                            self._sockets[action.worker].sendall(line)
                case Record():
                    self.records.append(action)
                case Finish():
                    self.finish = action
                case _:
                    pass

    def _start(self, action: StartWorker) -> None:
        environment: dict[str, Any] = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "SHOAL_TRAIN_SOCKET": self._path,
            "SHOAL_TRAIN_WORKER": action.worker,
            "SHOAL_TRAIN_HOST": "127.0.0.1",
            "SHOAL_TRAIN_CHECKPOINT_DIR": str(self._directory / "checkpoints"),
            "SHOAL_TRAIN_MAX_WORKERS": str(self._membership.state.settings.max_workers),
            "ADAPTDL_JOB_ID": "test",
            "ADAPTDL_SHARE_PATH": str(self._directory),
            **self._environment,
        }
        with (self._directory / f"{action.worker}.log").open("ab") as log:
            self._processes[action.worker] = subprocess.Popen(
                [sys.executable, "-m", "shoal.train.worker", str(self._script), *self._args],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._directory,
            )


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except (OSError, IndexError):
        return False
