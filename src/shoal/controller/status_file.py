"""state.json: the schema of the file in which the controller publishes its status, replaced as a
whole.

`shoal status`, `why` and `monitor` read this file and nothing else, so it is self-contained.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.controller.paths import STATE
from shoal.controller.state import ControllerState, Decision
from shoal.core.atomic_write import write_atomically
from shoal.core.logs import suppress_and_log
from shoal.ray_runtime.nodes import RayNode
from shoal.scaling import Demand, Plan, Shape, Unmet
from shoal.scaling.demand import Resources, floor_name
from shoal.scaling.unmet_demand import can_hold
from shoal.spec.cluster_spec import ClusterSpec

_log = logging.getLogger(__name__)

# A controller that has not written for this long is assumed dead.
STALE_SECONDS = 15.0
_MAX_RECENT = 30
# How many pending nodes are named for each row of waiting demand.
_MAX_NAMED = 5

# Resources of a node, by node type.
NodeResources = Mapping[str, Resources]


@dataclass(frozen=True)
class WaitingDemand:
    """One row of pending demand: its shape, how many, since when, and what will become of it."""

    subject: str
    count: int
    since: float
    outlook: str
    fix: str = ""


@dataclass(frozen=True)
class ControllerStatus:
    """The whole file. `nodes`, `gone` and `requested` are nodes and intents as plain data; `usage`
    has (used, total) by resource, and `node_usage` the same by instance id; `error` is empty while
    all is well. `autostop_at` is when the cluster stops if it stays unused; None without autostop
    and while it is used."""

    at: float
    pid: int
    cluster: str
    nodes: tuple[Mapping[str, Any], ...] = ()
    gone: tuple[Mapping[str, Any], ...] = ()
    requested: tuple[Mapping[str, Any], ...] = ()
    waiting: tuple[WaitingDemand, ...] = ()
    usage: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    node_usage: Mapping[str, Mapping[str, tuple[float, float]]] = field(default_factory=dict)
    price_per_hour: float = 0.0
    limits: Mapping[str, Any] = field(default_factory=dict)
    decisions: tuple[Decision, ...] = ()
    error: str = ""
    metrics: str = ""
    autostop_at: float | None = None


def limits(spec: ClusterSpec) -> dict[str, Any]:
    """The limits in force, which show whether a new config was applied."""
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


def describe_limits(spec: ClusterSpec) -> str:
    """The most important limits as text."""
    scaling, autostop = spec.scaling, spec.shoal.autostop
    text = f"max_workers {scaling.max_workers}, idle timeout {scaling.idle_timeout_s:.0f} s"
    return f"{text}, {f'autostop {autostop:.0f} s' if autostop else 'no autostop'}"


def usage(nodes: Iterable[RayNode]) -> dict[str, tuple[float, float]]:
    """How much of each resource is used, and of how much."""
    sums: dict[str, tuple[float, float]] = {}
    for node in nodes:
        for name, total in node.total.items():
            if not name.startswith("node:"):
                used, sum_total = sums.get(name, (0.0, 0.0))
                used += total - node.available.get(name, 0.0)
                sums[name] = (used, sum_total + total)
    return dict(sorted(sums.items()))


class WaitingQueue:
    """Which demand waits, and since when. A row is identified by its shape, whatever its count."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def rows(
        self,
        demand: Demand,
        plan: Plan,
        state: ControllerState,
        resources: NodeResources,
        now: float,
        error: str = "",
    ) -> list[WaitingDemand]:
        """The pending demand. Each row names the pending nodes that could run it, or the reason
        why there are none. A floor waits when the cluster cannot become large enough for it, and
        min_workers wait when they cannot be launched. While the controller has an `error`, it does
        not plan."""
        unmet = {u.subject: u for u in plan.unmet}
        demands: dict[str, tuple[Sequence[Shape], int]] = {}
        demands.update({str(r.shape): ([r.shape], r.count) for r in demand.requests})
        demands.update({str(g): (g.bundles, g.count) for g in demand.gangs})
        floors = {floor_name(r.shape): ([r.shape], r.count) for r in demand.floors}
        demands.update({subject: row for subject, row in floors.items() if subject in unmet})
        demands.update({u.subject: ((), u.count) for u in plan.unmet if u.is_minimum})
        self._since = {subject: self._since.get(subject, now) for subject in demands}
        pending = _pending_nodes(state)
        return [
            self._row(
                subject, count, unmet.get(subject), _fitting(pending, shapes, resources), error
            )
            for subject, (shapes, count) in demands.items()
        ]

    def _row(
        self, subject: str, count: int, unmet: Unmet | None, coming: str, error: str
    ) -> WaitingDemand:
        since = self._since[subject]
        if unmet is None:
            outlook = "existing nodes have room for it"
            if error:
                outlook = f"the controller does not plan at the moment: {error}"
            outlook = coming or outlook
            return WaitingDemand(subject, count, since, outlook)
        if coming:
            outlook = f"{coming}; {unmet.count} of {count} must wait: {unmet.reason}"
        else:
            outlook = f"no node is coming: {unmet.reason}"
        return WaitingDemand(subject, count, since, outlook, unmet.fix)


def _pending_nodes(state: ControllerState) -> dict[str, list[str]]:
    """Descriptions of pending nodes and launches, by node type."""
    descriptions: dict[str, list[str]] = {}
    for node in state.nodes.values():
        if node.is_pending:
            text = f"{node.name} ({node.node_type}, {node.phase})"
            descriptions.setdefault(node.node_type, []).append(text)
    for intent in state.intents.values():
        text = f"{intent.count} x {intent.node_type} (requested)"
        descriptions.setdefault(intent.node_type, []).append(text)
    return descriptions


def _fitting(
    pending: Mapping[str, list[str]], shapes: Iterable[Shape], resources: NodeResources
) -> str:
    """Pending nodes of the types that can hold one of these shapes; the first are named."""
    types = [t for t in pending if any(can_hold(resources.get(t, {}), shape) for shape in shapes)]
    names = [text for node_type in types for text in pending[node_type]]
    more = [f"and {len(names) - _MAX_NAMED} more"] if len(names) > _MAX_NAMED else []
    return f"coming: {', '.join([*names[:_MAX_NAMED], *more])}" if names else ""


def journaled(state: ControllerState) -> dict[str, Any]:
    """The part of the status that comes from the journal, and so must survive a replay."""
    return {
        "nodes": tuple(map(vars, state.nodes.values())),
        "gone": tuple(map(vars, list(state.gone.values())[-_MAX_RECENT:])),
        "requested": tuple(map(vars, state.intents.values())),
        "decisions": tuple(list(state.decisions)[-_MAX_RECENT:]),
    }


def write(directory: Path, status: ControllerStatus) -> None:
    """Replace the file; on a full disk the old one stays."""
    # `asdict` copies everything, which with ten thousand nodes is most of an iteration.
    text = json.dumps(vars(status), default=vars)
    with suppress_and_log(_log, f"write {STATE}", OSError):
        write_atomically(directory / STATE, text)


def parse(text: str) -> ControllerStatus:
    """The status that `write` wrote. Raises ValueError for any other text."""
    try:
        data = json.loads(text)
        data["waiting"] = tuple(WaitingDemand(**row) for row in data["waiting"])
        data["decisions"] = tuple(Decision(**row) for row in data["decisions"])
        for name in ("nodes", "gone", "requested"):
            data[name] = tuple(data[name])
        data["usage"] = {name: (used, total) for name, (used, total) in data["usage"].items()}
        return ControllerStatus(**data)
    except (TypeError, KeyError) as error:
        raise ValueError(f"not a controller status: {error}") from None
