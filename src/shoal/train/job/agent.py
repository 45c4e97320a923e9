"""The agent of a job on one node: starts workers, watches them, and passes messages between them
and the controller. Plain asyncio; `actors.py` makes a Ray actor of it.

What happens is appended to `events`, in order, for the controller. The agent decides nothing, with
one exception: a worker that is stopped (SIGSTOP) for longer than a second is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shoal.train.job.actions import Exit, WorkerReport
from shoal.train.job.worker_output import OutputFile
from shoal.train.messages import (
    Commit,
    ControllerMessage,
    Generation,
    Hello,
    MalformedMessage,
    Prepared,
    Progress,
    Switched,
    UsesLibrary,
    WorkerMessage,
)

_WATCH_S = 0.1
_FROZEN_S = 1.0
_DRAIN_S = 2.0


@dataclass(frozen=True)
class MessageEvent:
    message: WorkerMessage


@dataclass(frozen=True)
class ExitEvent:
    worker: str
    exit: Exit


@dataclass(frozen=True)
class OutputEvent:
    """Lines that rank 0 printed."""

    worker: str
    lines: tuple[str, ...]


AgentEvent = MessageEvent | ExitEvent | OutputEvent


@dataclass
class WorkerProcess:
    """A worker and what passed through the agent to and from it."""

    id: str
    process: asyncio.subprocess.Process
    output: OutputFile
    writer: asyncio.StreamWriter | None = None
    disconnected: asyncio.Event = field(default_factory=asyncio.Event)
    undelivered: list[ControllerMessage] = field(default_factory=list)
    announced: dict[int, Generation] = field(default_factory=dict)
    connected: bool = False
    uses_library: bool = False
    prepared: bool = False
    committed: int = 0
    switched: int = 0
    step: int = 0
    stopped_since: float | None = None
    frozen: bool = False

    @property
    def is_rank_0(self) -> bool:
        current = self.announced.get(self.switched or max(self.announced, default=0))
        return current is not None and current.members[0] == self.id

    def report(self, node: str) -> WorkerReport:
        newest = max(self.announced, default=0)
        return WorkerReport(
            self.id, node, self.connected, self.uses_library, self.prepared, self.switched,
            self.step, self.announced.get(newest), self.announced.get(self.switched),
            self.committed,
        )  # fmt: skip


class Agent:
    def __init__(self, node: str, logs: Path) -> None:
        self.node = node
        self.events: asyncio.Queue[AgentEvent] = asyncio.Queue()
        self._logs = logs
        self._workers: dict[str, WorkerProcess] = {}
        self._exited: dict[str, WorkerReport] = {}  # until the controller knows of the exit
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        # Short: the path of a unix socket may have 107 bytes.
        self._directory = Path(tempfile.mkdtemp(prefix="shoal-", dir="/tmp"))

    @property
    def socket(self) -> str:
        return str(self._directory / "s")

    async def open(self) -> None:
        self._logs.mkdir(parents=True, exist_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, self.socket, limit=1 << 24)
        self._keep(asyncio.create_task(self._watch()))

    async def close(self) -> None:
        """Kill all workers and stop listening."""
        for worker in list(self._workers.values()):
            self._kill_group(worker)
        waits = [worker.process.wait() for worker in self._workers.values()]
        if waits:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.gather(*waits), timeout=5)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            self._server.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    # --- for the controller ---

    async def start_worker(
        self, worker: str, command: Sequence[str], cwd: Path, env: Mapping[str, str]
    ) -> None:
        if worker in self._workers:
            return
        path = self._logs / f"{worker}.log"
        output = OutputFile(path, path.stat().st_size if path.exists() else 0)
        try:
            with path.open("ab") as log:  # a worker that is started again
                process = await asyncio.create_subprocess_exec(
                    *command, cwd=cwd, env=dict(env), stdin=asyncio.subprocess.DEVNULL,
                    stdout=log, stderr=log, start_new_session=True,
                )  # fmt: skip
        except OSError as error:
            lines = (f"{command[0]}: {error.strerror}",)
            self.events.put_nowait(ExitEvent(worker, Exit(127, lines=lines)))
            return
        started = WorkerProcess(worker, process, output)
        self._workers[worker] = started
        self._keep(asyncio.create_task(self._wait(started)))

    def deliver(self, worker: str, message: ControllerMessage) -> None:
        """Send a message to a worker, once it is connected."""
        found = self._workers.get(worker)
        if found is None:
            return
        if isinstance(message, Generation):
            found.announced[message.generation] = message
        elif isinstance(message, Commit):
            found.committed = max(found.committed, message.generation)
        if found.writer is None:
            found.undelivered.append(message)
        else:
            self._write(found, message)

    def kill(self, worker: str) -> None:
        if found := self._workers.get(worker):
            self._kill_group(found)

    def signal(self, worker: str, number: int) -> None:
        if found := self._workers.get(worker):
            if number == signal.SIGKILL:
                self._kill_group(found)
            else:
                with contextlib.suppress(ProcessLookupError):
                    found.process.send_signal(number)

    def reports(self) -> list[WorkerReport]:
        """All workers of whose exit the controller has not been informed."""
        running = [worker.report(self.node) for worker in self._workers.values()]
        return [*running, *self._exited.values()]

    def exit_is_known(self, worker: str) -> None:
        self._exited.pop(worker, None)

    # --- workers ---

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        worker: WorkerProcess | None = None
        with contextlib.suppress(ConnectionError, ValueError):
            while line := await reader.readline():
                try:
                    message = WorkerMessage.from_json(line.decode())
                except (MalformedMessage, UnicodeDecodeError):
                    continue
                if worker is None:
                    worker = self._workers.get(message.worker)
                    if worker is None:
                        break
                    worker.writer = writer
                    undelivered, worker.undelivered = worker.undelivered, []
                    for waiting in undelivered:
                        self._write(worker, waiting)
                self._note(worker, message)
                self.events.put_nowait(MessageEvent(message))
        if worker is not None:
            worker.disconnected.set()
        writer.close()

    def _note(self, worker: WorkerProcess, message: WorkerMessage) -> None:
        if isinstance(message, Hello):
            worker.connected = True
        elif isinstance(message, UsesLibrary):
            worker.uses_library = True
        elif isinstance(message, Prepared):
            worker.prepared = True
        elif isinstance(message, Switched):
            worker.switched, worker.step = message.generation, message.step
            for old in [g for g in worker.announced if g < message.generation]:
                del worker.announced[old]
        elif isinstance(message, Progress):
            worker.step = message.step

    def _write(self, worker: WorkerProcess, message: ControllerMessage) -> None:
        assert worker.writer is not None
        with contextlib.suppress(ConnectionError, RuntimeError):
            worker.writer.write(message.to_json().encode() + b"\n")

    async def _wait(self, worker: WorkerProcess) -> None:
        code = await worker.process.wait()
        self._kill_group(worker)  # what it started must not outlive it
        if worker.writer is not None:
            # What the worker has said before its end comes first.
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(worker.disconnected.wait(), timeout=_DRAIN_S)
        was_shown = worker.is_rank_0
        if was_shown:
            self._show(worker, at_end=True)
        lines = () if was_shown else worker.output.last_lines()
        exit = Exit(code if code >= 0 else None, -code if code < 0 else None, worker.frozen, lines)
        del self._workers[worker.id]
        self._exited[worker.id] = worker.report(self.node)
        self.events.put_nowait(ExitEvent(worker.id, exit))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_S)
            for worker in self._workers.values():
                self._check_frozen(worker)
                if worker.is_rank_0:
                    self._show(worker)
                else:
                    worker.output.skip()

    def _show(self, worker: WorkerProcess, *, at_end: bool = False) -> None:
        if lines := worker.output.new_lines(at_end=at_end):
            self.events.put_nowait(OutputEvent(worker.id, lines))

    def _check_frozen(self, worker: WorkerProcess) -> None:
        now = time.monotonic()
        if process_state(worker.process.pid) != "T":
            worker.stopped_since = None
        elif worker.stopped_since is None:
            worker.stopped_since = now
        elif now - worker.stopped_since > _FROZEN_S:
            worker.frozen = True
            self._kill_group(worker)

    @staticmethod
    def _kill_group(worker: WorkerProcess) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(worker.process.pid, signal.SIGKILL)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def process_state(pid: int) -> str:
    """The state letter of a process, as `ps` shows it; empty if it cannot be read."""
    try:
        # The name of the program, in parentheses, may contain spaces and parentheses.
        text = Path(f"/proc/{pid}/stat").read_text()
        return text.rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
