"""What the controller shows of itself: one small JSON file on the head, replaced as a whole.

`shoal status`, `why` and `monitor` read it, and nothing else; so it says everything in words and
figures that need no further knowledge.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.controller.paths import STATE
from shoal.controller.state import ControllerState, Decision
from shoal.core.atomic_write import write_atomically
from shoal.ray_runtime.nodes import RayNode
from shoal.scaling import Demand, Plan, Shape, Unmet
from shoal.scaling.demand import Resources, floor_name
from shoal.scaling.unmet_demand import can_hold
from shoal.spec.cluster_spec import ClusterSpec

# A controller that has not written for so long is taken for dead.
STALE_SECONDS = 15.0
_RECENT = 30
# So many nodes that are coming are named for each row of what waits.
_NAMED = 5

# What nodes have, by their type.
Sizes = Mapping[str, Resources]


@dataclass(frozen=True)
class Waiting:
    """One row of pending demand: what, how many, and what is coming of it."""

    subject: str
    count: int
    since: float
    outlook: str
    fix: str = ""


@dataclass(frozen=True)
class State:
    """The whole file. `nodes` and `gone` hold nodes as data, `usage` pairs of used and total."""

    at: float
    pid: int
    cluster: str
    nodes: tuple[Mapping[str, Any], ...] = ()
    gone: tuple[Mapping[str, Any], ...] = ()
    requested: tuple[Mapping[str, Any], ...] = ()
    waiting: tuple[Waiting, ...] = ()
    usage: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    price_per_hour: float = 0.0
    limits: Mapping[str, Any] = field(default_factory=dict)
    decisions: tuple[Decision, ...] = ()
    trouble: str = ""
    metrics: str = ""


def limits(spec: ClusterSpec) -> dict[str, Any]:
    """The limits in force, so that a person sees which ones have arrived."""
    return {
        "max_workers": spec.scaling.max_workers,
        "idle_timeout_s": spec.scaling.idle_timeout_s,
        "autostop_s": spec.shoal.autostop,
        "lease_s": spec.shoal.lease,
        "types": {
            name: {"min_workers": t.min_workers, "max_workers": t.max_workers}
            for name, t in spec.node_types.items()
        },
    }


def in_words(spec: ClusterSpec) -> str:
    """The most important of them, for a person."""
    scaling, autostop = spec.scaling, spec.shoal.autostop
    text = f"max_workers {scaling.max_workers}, idle timeout {scaling.idle_timeout_s:.0f} s"
    return f"{text}, {f'autostop {autostop:.0f} s' if autostop else 'no autostop'}"


def usage(nodes: Iterable[RayNode]) -> dict[str, tuple[float, float]]:
    """How much of each resource Ray has handed out, of how much."""
    sums: dict[str, tuple[float, float]] = {}
    for node in nodes:
        for name, total in node.total.items():
            if not name.startswith("node:"):
                used, all = sums.get(name, (0.0, 0.0))
                sums[name] = (used + total - node.available.get(name, 0.0), all + total)
    return dict(sorted(sums.items()))


class Queue:
    """What waits, and since when. A row is known by what it asks for, however many."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def rows(
        self, demand: Demand, plan: Plan, memory: ControllerState, sizes: Sizes, now: float
    ) -> list[Waiting]:
        """The pending demand with, for each row, the nodes that are coming and could hold it, or
        why none will. A floor waits when the cluster cannot be made large enough for it."""
        unmet = {u.subject: u for u in plan.unmet}
        wishes: dict[str, tuple[Sequence[Shape], int]] = {}
        wishes.update({str(r.shape): ([r.shape], r.count) for r in demand.requests})
        wishes.update({str(g): (g.bundles, g.count) for g in demand.gangs})
        floors = {floor_name(r.shape): ([r.shape], r.count) for r in demand.floors}
        wishes.update({subject: wish for subject, wish in floors.items() if subject in unmet})
        self._since = {subject: self._since.get(subject, now) for subject in wishes}
        coming = _coming(memory)
        return [
            self._row(subject, count, unmet.get(subject), _fitting(coming, shapes, sizes))
            for subject, (shapes, count) in wishes.items()
        ]

    def _row(self, subject: str, count: int, unmet: Unmet | None, coming: str) -> Waiting:
        since = self._since[subject]
        if unmet is None:
            outlook = coming or "the nodes that are there have room for it"
            return Waiting(subject, count, since, outlook)
        waits = f"{unmet.count} of {count} must wait: {unmet.reason}"
        outlook = f"{coming}; {waits}" if coming else f"none is coming: {unmet.reason}"
        return Waiting(subject, count, since, outlook, unmet.fix)


def _coming(memory: ControllerState) -> dict[str, list[str]]:
    """What is on its way, in words, by node type."""
    found: dict[str, list[str]] = {}
    for node in memory.nodes.values():
        if node.on_the_way:
            found.setdefault(node.node_type, []).append(
                f"{node.name} ({node.node_type}, {node.phase})"
            )
    for intent in memory.intents.values():
        words = f"{intent.count} x {intent.node_type} (requested)"
        found.setdefault(intent.node_type, []).append(words)
    return found


def _fitting(coming: Mapping[str, list[str]], shapes: Iterable[Shape], sizes: Sizes) -> str:
    """Those of a type that has room for one of these shapes, the first of them by name."""
    types = [t for t in coming if any(can_hold(sizes.get(t, {}), shape) for shape in shapes)]
    parts = [words for node_type in types for words in coming[node_type]]
    more = [f"and {len(parts) - _NAMED} more"] if len(parts) > _NAMED else []
    return f"coming: {', '.join([*parts[:_NAMED], *more])}" if parts else ""


def remembered(memory: ControllerState) -> dict[str, Any]:
    """The part of the state that comes from the journal, and so must survive a replay."""
    return {
        "nodes": tuple(map(vars, memory.nodes.values())),
        "gone": tuple(map(vars, list(memory.gone.values())[-_RECENT:])),
        "requested": tuple(map(vars, memory.intents.values())),
        "decisions": tuple(list(memory.decisions)[-_RECENT:]),
    }


def write(directory: Path, state: State) -> None:
    """Replace the file; one for which there is no room stays as it is."""
    # `asdict` copies everything, which at ten thousand nodes is most of a turn.
    text = json.dumps(vars(state), default=vars)
    with contextlib.suppress(OSError):
        write_atomically(directory / STATE, text)


def parse(text: str) -> State:
    """The state that `write` was given. Raises ValueError for what is none."""
    try:
        data = json.loads(text)
        data["waiting"] = tuple(Waiting(**row) for row in data["waiting"])
        data["decisions"] = tuple(Decision(**row) for row in data["decisions"])
        for name in ("nodes", "gone", "requested"):
            data[name] = tuple(data[name])
        data["usage"] = {name: (used, total) for name, (used, total) in data["usage"].items()}
        return State(**data)
    except (TypeError, KeyError) as error:
        raise ValueError(f"not a controller's state: {error}") from None
