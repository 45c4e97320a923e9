"""What a training has achieved, from the logs of its workers.

A step can be made several times: after a failure, or again from a checkpoint. The last time counts,
and what was trained before and not kept is no part of the result.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.train_bench.trace_workload import SAMPLES, STEPS_PER_PASS

# The samples per second of an undisturbed group, by its number of workers.
Rates = Mapping[int, float]

# A pause is a stall if it is longer than so many usual steps.
_STALL = 1.5


@dataclass(frozen=True)
class Step:
    number: int
    end: float
    workers: int
    samples: tuple[int, ...]
    loss: float

    def usual(self, rates: Rates) -> float:
        """How long such a step takes in an undisturbed group."""
        return len(self.samples) / rates[self.workers]


@dataclass(frozen=True)
class Availability:
    """How many nodes there were: the changes of their number, in order."""

    changes: tuple[tuple[float, int], ...]

    def capacity(self, rates: Rates, start: float, end: float) -> float:
        """The samples that undisturbed groups of as many workers train in this time."""
        total, nodes, since = 0.0, 0, start
        for at, change in self.changes:
            if at >= end:
                break
            if at > since:
                total += rates[nodes] * (at - since)
                since = at
            nodes += change
        return total + rates[nodes] * (end - since)


@dataclass(frozen=True)
class Losses:
    """Samples of the capacity that were not trained: while all workers were stalled, on nodes
    without a worker, and the rest, which is the cost of each step and of repeated ones."""

    stalled: float
    idle: float
    other: float


def read_steps(directory: Path, until: float = math.inf) -> list[Step]:
    """The steps that are part of the state at a moment, in order."""
    lines = [line for line in _lines(directory) if line["at"] <= until]
    lines.sort(key=lambda line: float(line["at"]))
    begins: dict[int, dict[int, dict[str, Any]]] = {}
    ends: dict[int, dict[int, dict[str, Any]]] = {}
    for line in lines:
        by_step = begins if line["kind"] == "begin" else ends
        by_step.setdefault(line["step"], {})[line["rank"]] = line
    steps = [_step(n, begins[n], ends[n]) for n in sorted(begins) if n in ends]
    return _without_discarded(steps)


def _lines(directory: Path) -> Iterable[dict[str, Any]]:
    for path in directory.glob("steps-*"):
        for line in path.read_text().split("\n")[:-1]:  # a last line may be incomplete
            yield json.loads(line)


def _step(number: int, begins: dict[int, dict[str, Any]], ends: dict[int, dict[str, Any]]) -> Step:
    workers = max(begins.values(), key=lambda line: float(line["at"]))["workers"]
    parts = [line for rank, line in begins.items() if rank < workers]
    last = max(ends.values(), key=lambda line: float(line["at"]))
    samples = tuple(i for part in parts for i in part["samples"])
    return Step(number, last["at"], len(parts), samples, last["loss"])


def _without_discarded(steps: Sequence[Step]) -> list[Step]:
    """Without steps that were made before a lower one: a checkpoint has replaced their state."""
    kept: list[Step] = []
    newest = 0.0
    for step in steps:
        if step.end >= newest:
            kept.append(step)
            newest = step.end
    return kept


def lost_and_repeated(steps: Sequence[Step]) -> tuple[int, int]:
    """In all passes over the data, how many samples are missing, and how many came again. Of the
    last pass only those of its steps so far are expected."""
    counts: dict[int, Counter[int]] = {}
    for step in steps:
        counts.setdefault(step.number // STEPS_PER_PASS, Counter()).update(step.samples)
    if not steps:
        return 0, 0
    made = steps[-1].number + 1
    expected = SAMPLES * (made // STEPS_PER_PASS)
    expected += SAMPLES // STEPS_PER_PASS * (made % STEPS_PER_PASS)
    distinct = sum(len(count) for count in counts.values())
    return expected - distinct, sum(c - 1 for count in counts.values() for c in count.values())


def samples_between(steps: Sequence[Step], start: float, end: float) -> int:
    return sum(len(step.samples) for step in steps if start < step.end <= end)


def stalls(steps: Sequence[Step], rates: Rates, start: float, end: float) -> list[float]:
    """The pauses between steps that are longer than usual, less a usual step."""
    return [gap.pause for gap in _gaps(steps, rates, start, end) if gap.pause]


def losses(
    steps: Sequence[Step], nodes: Availability, rates: Rates, start: float, end: float
) -> Losses:
    stalled = idle = 0.0
    for gap in _gaps(steps, rates, start, end):
        seconds = gap.end - gap.start
        available = nodes.capacity(rates, gap.start, gap.end) / seconds if seconds else 0.0
        stalled += available * gap.pause
        idle += max(0.0, available - rates[gap.workers]) * (seconds - gap.pause)
    trained = samples_between(steps, start, end)
    return Losses(stalled, idle, nodes.capacity(rates, start, end) - trained - stalled - idle)


@dataclass(frozen=True)
class _Gap:
    """The time between two steps, and how much of it training was stalled."""

    start: float
    end: float
    workers: int
    pause: float


def _gaps(steps: Sequence[Step], rates: Rates, start: float, end: float) -> Iterable[_Gap]:
    """From each step to the next one, and from the last one to the end."""
    for before, step in itertools.pairwise(steps):
        if start < step.end <= end:
            usual = max(before.usual(rates), step.usual(rates))
            yield _gap(before.end, step.end, step.workers, usual)
    if steps:
        yield _gap(max(start, steps[-1].end), end, steps[-1].workers, steps[-1].usual(rates))


def _gap(start: float, end: float, workers: int, usual: float) -> _Gap:
    pause = end - start - usual
    return _Gap(start, end, workers, pause if pause > (_STALL - 1) * usual else 0.0)
