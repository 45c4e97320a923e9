"""Starts and ends the nodes of a system as a trace says."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.train_bench.spot_trace import SPEED, SpotTrace
from benchmarks.train_bench.trace_audit import Availability, read_steps
from benchmarks.train_bench.trace_systems import System

NOTICE_S = 120.0 / SPEED
_JOIN_S = 150.0
# On a busy machine a raylet can end while it starts; it is then started again.
_START_AGAIN_S = 45.0
_WARM_UP_S = 240.0
_WARM_UP_STEPS = 5
_POLL_S = 0.1
_LOOK_S = 0.3


class _Nodes:
    """The nodes of a system, and since when they are there."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.changes: list[tuple[float, int]] = []
        self._starting: dict[str, float] = {}  # since when
        self._alive: set[str] = set()
        self._look_at = 0.0

    def start(self, node: str) -> None:
        self.system.start(node)
        self._starting[node] = time.monotonic()

    def kill(self, node: str) -> None:
        if node in self._alive:
            self.changes.append((time.monotonic(), -1))
        else:
            print(f"{node} had not joined when it ended", flush=True)
        self._alive.discard(node)
        self._starting.pop(node, None)
        self.system.kill(node)

    def look(self) -> None:
        """Note the nodes that have joined, and start those again that take too long."""
        now = time.monotonic()
        if not self._starting or now < self._look_at:
            return
        self._look_at = now + _LOOK_S
        for node in set(self._starting) & self.system.alive():
            del self._starting[node]
            self._alive.add(node)
            self.changes.append((time.monotonic(), 1))
        for node, since in list(self._starting.items()):
            if now - since > _START_AGAIN_S:
                print(f"{node} is started again", flush=True)
                self.system.kill(node)
                self.start(node)

    @property
    def are_starting(self) -> bool:
        return bool(self._starting)


def replay(system: System, trace: SpotTrace, directory: Path) -> tuple[float, float, Availability]:
    """Train through the trace. Returns when it began and ended, and the nodes that there were."""
    nodes = _Nodes(system)
    _start_first(nodes, trace)
    _warm_up(directory, len(trace.initial))
    begun = time.monotonic()
    for at, action, node in _schedule(trace, system.boot_s):
        while time.monotonic() < begun + at:
            nodes.look()
            time.sleep(_POLL_S)
        if action == "start":
            nodes.start(node)
        elif action == "announce":
            system.announce_end(node, NOTICE_S)
        elif action == "kill":
            nodes.kill(node)
    return begun, time.monotonic(), Availability(tuple(nodes.changes))


def _start_first(nodes: _Nodes, trace: SpotTrace) -> None:
    """One by one: several at a time take longer on few cores."""
    for node in trace.initial:
        nodes.start(node)
        deadline = time.monotonic() + _JOIN_S
        while nodes.are_starting:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{node} has not joined in {_JOIN_S:g} s")
            nodes.look()
            time.sleep(_POLL_S)
    nodes.system.begin_training()


def _warm_up(directory: Path, workers: int) -> None:
    """Wait until all first workers train together."""
    deadline = time.monotonic() + _WARM_UP_S
    while True:
        last = read_steps(directory)[-_WARM_UP_STEPS:]
        if len(last) == _WARM_UP_STEPS and all(step.workers == workers for step in last):
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"{workers} workers do not train together in {_WARM_UP_S:g} s")
        time.sleep(_LOOK_S)


def _schedule(trace: SpotTrace, boot_s: float) -> list[tuple[float, str, str]]:
    actions = [(trace.seconds, "end", "")]
    for change in trace.changes:
        if change.kind == "add":
            actions.append((max(0.0, change.at - boot_s), "start", change.node))
        else:
            actions.append((max(0.0, change.at - NOTICE_S), "announce", change.node))
            actions.append((change.at, "kill", change.node))
    return sorted(actions)
