"""Consolidation: run the same work on a cheaper set of nodes, moving only restartable work.

It takes two steps, in different calls. If the work of a node fits in the free capacity of other
nodes, the node is drained. If new, cheaper instances would hold it, those are launched first, and
the old nodes are drained by the first step once the new ones are ready. A node's work moves as a
whole, which is stricter than necessary: Ray does not report its parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shoal.core.node_phase import Phase
from shoal.scaling.demand import LabelRule, Shape
from shoal.scaling.inputs import NodeView
from shoal.scaling.instance_selection import InstanceSelector
from shoal.scaling.offerings import Offerings
from shoal.scaling.resource_vectors import ResourceSpace
from shoal.scaling.scaling_plan import Cause, PlannedDrain, PlannedLaunch, Reason
from shoal.scaling.snapshot import ClusterSnapshot

# Moving work loses its progress, so the cluster must have been quiet and the saving must be real.
QUIET_S = 300.0
MIN_SAVING = 0.15
# How long to wait for replacements to become ready.
REPLACEMENT_TIMEOUT_S = 900.0
# At most this share of the workers is drained at once.
MAX_SHARE_MOVED = 0.1
_MAX_NODES_CONSIDERED = 60


@dataclass
class Consolidation:
    """What to launch or to drain so that the same work costs less."""

    launches: list[PlannedLaunch] = field(default_factory=list)
    drains: list[PlannedDrain] = field(default_factory=list)


@dataclass(frozen=True)
class _Load:
    """The work on a node, as one shape, and the node's price per hour."""

    node: NodeView
    shape: Shape
    price: float


class Consolidator:
    """Looks for one step. `min_by_type` and `min_workers` are the workers to keep."""

    def __init__(
        self,
        snapshot: ClusterSnapshot,
        offerings: Offerings,
        min_by_type: Mapping[str, int],
        min_workers: int,
    ) -> None:
        self._snapshot = snapshot
        self._offerings = offerings
        self._min_by_type = min_by_type
        self._min_workers = min_workers
        self._loads = sorted(
            (
                self._load(n)
                for n in snapshot.workers()
                if n.phase is Phase.READY and n.restartable and not n.idle_s
            ),
            key=lambda load: (-load.price, load.node.id),
        )[:_MAX_NODES_CONSIDERED]
        largest = [
            *offerings.resources.values(),
            *(snapshot.total_of(n) for n, _ in snapshot.serving),
        ]
        self._space = ResourceSpace([load.shape for load in self._loads], largest)

    def drain_movable(self, replacements: Mapping[str, int]) -> Consolidation:
        """Drain nodes whose work fits on nodes that stay: on busy ones, and on replacements
        launched for this."""
        excluded = {
            n.id for n in self._snapshot.workers() if not self._can_receive(n, replacements)
        }
        max_drains = max(1, int(self._snapshot.worker_count * MAX_SHARE_MOVED))
        remaining_by_type = Counter(self._snapshot.serving_by_type)
        result = Consolidation()
        drained: set[str] = set()
        for load in self._loads:
            node = load.node
            if len(drained) >= max_drains or sum(remaining_by_type.values()) <= self._min_workers:
                break
            if remaining_by_type[node.node_type] <= self._min_by_type.get(node.node_type, 0):
                continue
            without = {*excluded, *drained, node.id}
            free_capacity = self._snapshot.free_capacity(self._space, without=without)
            moved_items = [
                self._space.item(other.shape, 1)
                for other in self._loads
                if other.node.id in drained
            ]
            if any(free_capacity.pack([*moved_items, self._space.item(load.shape, 1)])):
                continue
            drained.add(node.id)
            remaining_by_type[node.node_type] -= 1
            text = f"its work {load.shape} fits on other nodes; saves ${load.price:.2f}/h"
            reason = Reason(Cause.CONSOLIDATION, text, {"saves_per_hour": load.price})
            result.drains.append(PlannedDrain(node.id, node.node_type, reason))
        return result

    def launch_replacements(self) -> Consolidation:
        """Launch a mix that would hold the work of some nodes for clearly less money."""
        groups = [self._loads, self._loads[: len(self._loads) // 2]]
        groups += [[load] for load in self._loads]
        best: tuple[float, Sequence[_Load], list[PlannedLaunch]] | None = None
        for group in filter(None, groups):
            candidate = self._cheaper_mix(group)
            if candidate and (best is None or candidate[0] > best[0] + 1e-9):
                best = (candidate[0], group, candidate[1])
        return Consolidation(launches=best[2] if best else [])

    def _cheaper_mix(self, group: Sequence[_Load]) -> tuple[float, list[PlannedLaunch]] | None:
        snapshot = self._snapshot
        replaced = Counter(load.node.node_type for load in group)
        if any(
            snapshot.serving_by_type[t] - n < self._min_by_type.get(t, 0)
            for t, n in replaced.items()
        ):
            return None
        instance_selector = InstanceSelector(
            self._space,
            self._offerings.options,
            snapshot.remaining_by_type(),
            snapshot.remaining_total(),
        )
        counts = Counter(load.shape for load in group)
        items = [self._space.item(shape, n) for shape, n in sorted(counts.items())]
        selected = instance_selector.select_all(items)
        if selected is None:
            return None
        cost = sum(load.price for load in group)
        saving = cost - sum(s.count * s.option.price for s in selected)
        if saving < MIN_SAVING * cost or not all(s.option.is_price_known for s in selected):
            return None
        names = ", ".join(f"{n} x {t}" for t, n in sorted(replaced.items()))
        text = f"holds the work of {names} for ${saving:.2f}/h less"
        reason = Reason(Cause.CONSOLIDATION, text, {"saves_per_hour": saving, "now": cost})
        return saving, [
            PlannedLaunch(
                s.option.node_type,
                s.count,
                reason,
                s.option.market,
                s.option.zone,
                s.option.price,
                throttled=False,
            )
            for s in selected
        ]

    def _can_receive(self, node: NodeView, replacements: Mapping[str, int]) -> bool:
        """Whether work may move to a node. An idle node is about to be removed, so nothing moves
        there unless it was launched as a replacement."""
        return node.phase is Phase.READY and (not node.idle_s or node.node_type in replacements)

    def _load(self, node: NodeView) -> _Load:
        used = {
            name: total - node.available.get(name, 0.0)
            for name, total in node.total.items()
            if not name.startswith("node:")
        }
        node_type = self._snapshot.spec.node_types.get(node.node_type)
        # The work on this node may require any label of its type.
        rules = [
            LabelRule(k, (v,)) for k, v in sorted((node_type.labels if node_type else {}).items())
        ]
        shape = Shape.of(
            {n: max(0.0, round(u, 4)) for n, u in used.items()}, [rules] if rules else ()
        )
        return _Load(node, shape, self._snapshot.price_of(node))
