"""The history of a cluster on its head, for people who look later: phases of nodes, decisions,
failures, and samples of demand, capacity and price.

The journal holds the state and is compacted; this is append-only. Each file is renamed when it is
full, and its predecessor deleted. Losing a line loses nothing but its display, so errors are logged
and suppressed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.controller.paths import HISTORY, SAMPLES
from shoal.controller.state import ControllerState, Decision, Entry, Failure, NodeUpdated
from shoal.core.logs import suppress_and_log
from shoal.scaling import Demand

_log = logging.getLogger(__name__)

_HISTORY_BYTES = 4_000_000
_SAMPLES_BYTES = 1_000_000
# A sample is written when it differs from the last one, at most so often, and at least so often.
_MIN_SAMPLE_SECONDS = 2.0
_MAX_SAMPLE_SECONDS = 60.0


@dataclass(frozen=True)
class Sample:
    """The cluster at one time. `used` and `total` are Ray's resources, `pending` what waiting work
    needs in addition, `waiting` how many tasks, actors and gangs wait, `nodes` the nodes that exist
    by phase."""

    at: float
    used: Mapping[str, float] = field(default_factory=dict)
    total: Mapping[str, float] = field(default_factory=dict)
    pending: Mapping[str, float] = field(default_factory=dict)
    waiting: int = 0
    nodes: Mapping[str, int] = field(default_factory=dict)
    price_per_hour: float = 0.0


class History:
    """Appends to the files of one directory."""

    def __init__(self, directory: Path) -> None:
        self._history = directory / HISTORY
        self._samples = directory / SAMPLES
        self._last: Sample | None = None

    def record(self, entries: Iterable[Entry], state: ControllerState) -> None:
        """Append what a person would look for. `state` is the one before these entries."""
        phases = {id: node.phase for id, node in (*state.nodes.items(), *state.gone.items())}
        lines = []
        for entry in entries:
            if isinstance(entry, NodeUpdated):
                if phases.get(entry.node.id) is not entry.node.phase:
                    phases[entry.node.id] = entry.node.phase
                    lines.append({"kind": "node", **vars(entry.node)})
            elif isinstance(entry, Decision):
                lines.append({"kind": "decision", **vars(entry)})
            elif isinstance(entry, Failure):
                failure = entry.failure
                lines.append(
                    {
                        "kind": "failure",
                        "at": failure.at,
                        "node_type": failure.node_type,
                        "failure": str(failure.kind),
                        "text": entry.text,
                    }
                )
        if lines:
            _append(self._history, lines, _HISTORY_BYTES)

    def sample(self, sample: Sample) -> None:
        """Append a sample if it is news."""
        last = self._last
        if last is not None:
            age = sample.at - last.at
            is_same = vars(last) | {"at": 0.0} == vars(sample) | {"at": 0.0}
            if age < (_MAX_SAMPLE_SECONDS if is_same else _MIN_SAMPLE_SECONDS):
                return
        self._last = sample
        _append(self._samples, [vars(sample)], _SAMPLES_BYTES)


def pending_resources(demand: Demand) -> dict[str, float]:
    """The sum of the resources that pending tasks, actors and gangs request."""
    sums: dict[str, float] = {}
    shapes = [(r.shape, r.count) for r in demand.requests]
    shapes += [(bundle, gang.count) for gang in demand.gangs for bundle in gang.bundles]
    for shape, count in shapes:
        for name, amount in shape.resources:
            sums[name] = sums.get(name, 0.0) + amount * count
    return sums


def previous(name: str) -> str:
    """The name under which a full file is kept."""
    return f"{name}.1"


def _append(path: Path, lines: Iterable[Mapping[str, Any]], max_bytes: int) -> None:
    text = "".join(json.dumps(line) + "\n" for line in lines)
    with suppress_and_log(_log, f"append to {path}", OSError):
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
            is_full = file.tell() > max_bytes
        if is_full:
            path.replace(path.with_name(previous(path.name)))
