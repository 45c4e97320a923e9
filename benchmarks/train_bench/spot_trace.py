"""A public trace of spot instances, scaled to a few workers and a faster clock.

The trace is Bamboo's p3 trace: rows `time in ms, add or remove, node`, with up to 32 nodes in 11
hours. It is read from `../shared/traces` beside the repository, or from the file that SPOT_TRACE
names.
"""

from __future__ import annotations

import csv
import math
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

SPEED = 20.0
WORKERS = 4
# A part of the trace begins this long before its first change.
_LEAD_IN_S = 12.0


@dataclass(frozen=True)
class Change:
    """A node joins or ends, so many seconds after the beginning."""

    at: float
    kind: Literal["add", "remove"]
    node: str


@dataclass(frozen=True)
class SpotTrace:
    initial: tuple[str, ...]
    changes: tuple[Change, ...]
    seconds: float

    def count(self, kind: str) -> int:
        return sum(change.kind == kind for change in self.changes)


def trace_file() -> Path:
    beside = Path(__file__).parents[3] / "shared" / "traces" / "bamboo-p3-trace.csv"
    return Path(os.environ.get("SPOT_TRACE", beside))


def load(path: Path, minutes: float | None) -> SpotTrace:
    """The scaled trace, or its part of so many minutes with the most changes."""
    sizes = scaled(_node_counts(path))
    end = sizes[-1][0]
    if minutes is None or minutes * 60 >= end:
        return name_nodes(sizes, 0.0, end)
    return name_nodes(sizes, busiest_start(sizes, minutes * 60), minutes * 60)


def _node_counts(path: Path) -> list[tuple[float, int]]:
    """How many nodes there are from each time on, in seconds of the trace."""
    nodes: set[str] = set()
    counts: dict[float, int] = {}
    with path.open() as file:
        for time_ms, kind, node in csv.reader(file):
            if kind == "add":
                nodes.add(node)
            else:
                nodes.discard(node)
            counts[int(time_ms) / 1000] = len(nodes)
    return sorted(counts.items())


def scaled(counts: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """How many workers there are from each time on: the nearest number in proportion to the most
    nodes, at SPEED. The last entry is the end of the trace."""
    most = max(count for _, count in counts)
    sizes: list[tuple[float, int]] = []
    for at, count in counts:
        size = max(1, math.floor(count * WORKERS / most + 0.5))
        if not sizes or sizes[-1][1] != size:
            sizes.append((at / SPEED, size))
    end = counts[-1][0] / SPEED
    return [*sizes, (end, sizes[-1][1])]


def busiest_start(sizes: Sequence[tuple[float, int]], seconds: float) -> float:
    """Where the part of this length with the most changes begins."""
    end = sizes[-1][0]
    starts = [min(max(0.0, at - _LEAD_IN_S), end - seconds) for at, _ in sizes[1:]]
    return max(starts, key=lambda start: len(_changes_between(sizes, start, start + seconds)))


def _changes_between(
    sizes: Sequence[tuple[float, int]], start: float, end: float
) -> list[tuple[float, int]]:
    return [(at, size) for at, size in sizes[1:-1] if start < at < end]


def name_nodes(sizes: Sequence[tuple[float, int]], start: float, seconds: float) -> SpotTrace:
    """The trace from `start` on. Which node ends is drawn at random, with a fixed seed."""
    draw = random.Random(0)
    size = [size for at, size in sizes if at <= start][-1]
    alive = [f"n{number}" for number in range(1, size + 1)]
    initial, made = tuple(alive), size
    changes = []
    for at, size in _changes_between(sizes, start, start + seconds):
        while len(alive) > size:
            node = alive.pop(draw.randrange(len(alive)))
            changes.append(Change(at - start, "remove", node))
        while len(alive) < size:
            made += 1
            alive.append(f"n{made}")
            changes.append(Change(at - start, "add", alive[-1]))
    return SpotTrace(initial, tuple(changes), seconds)
