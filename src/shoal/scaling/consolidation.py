"""A cheaper set of nodes for what runs already, where only restartable work would move.

Two steps, on different calls. When free room elsewhere takes a node's whole load, the node goes.
When new and cheaper machines would take it, those are launched first, and the old nodes go by
the first step once the new ones are ready. A node's load moves as one piece: more careful than
need be, since nobody here knows its parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shoal.core.node_phase import Phase
from shoal.scaling.demand import LabelRule, Shape
from shoal.scaling.inputs import NodeView
from shoal.scaling.instance_selection import Market
from shoal.scaling.offerings import Offerings
from shoal.scaling.resource_vectors import ResourceSpace
from shoal.scaling.scaling_plan import Cause, PlannedDrain, PlannedLaunch, Reason
from shoal.scaling.snapshot import ClusterSnapshot

# Moving work costs its progress, so the cluster must have been quiet, and the saving real.
QUIET_S = 300.0
LEAST_SAVING = 0.15
# How long to wait for replacements before thinking again.
REPLACING_S = 900.0
# At most this share of the workers moves at once.
SHARE_AT_ONCE = 0.1
_MOST_CONSIDERED = 60


@dataclass
class Consolidation:
    """What to launch or to drain so that the same work costs less."""

    launches: list[PlannedLaunch] = field(default_factory=list)
    drains: list[PlannedDrain] = field(default_factory=list)


@dataclass(frozen=True)
class _Load:
    node: NodeView
    shape: Shape
    price: float


class Consolidator:
    """Looks for one step. `keep` and `least` are the minimums that must stay."""

    def __init__(
        self, census: ClusterSnapshot, shop: Offerings, keep: Mapping[str, int], least: int
    ) -> None:
        self._census = census
        self._shop = shop
        self._keep = keep
        self._least = least
        self._loads = sorted(
            (
                self._load(n)
                for n in census.workers()
                if n.phase is Phase.READY and n.restartable and not n.idle_s
            ),
            key=lambda load: (-load.price, load.node.id),
        )[:_MOST_CONSIDERED]
        largest = [*shop.resources.values(), *(census.total_of(n) for n, _ in census.serving)]
        self._frame = ResourceSpace([load.shape for load in self._loads], largest)

    def moves(self, replacing: Mapping[str, int]) -> Consolidation:
        """Drain nodes whose load fits in free room on nodes that stay: on busy ones, and on the
        replacements that were launched for this."""
        idle = {n.id for n in self._census.workers() if not self._receives(n, replacing)}
        most = max(1, int(self._census.worker_count * SHARE_AT_ONCE))
        spare = Counter(self._census.serving_by_type)
        result = Consolidation()
        gone: set[str] = set()
        room = self._census.room(self._frame, without=idle)
        for load in self._loads:
            node = load.node
            if len(gone) >= most or sum(spare.values()) <= self._least:
                break
            if spare[node.node_type] <= self._keep.get(node.node_type, 0):
                continue
            without = {*idle, *gone, node.id}
            room = self._census.room(self._frame, without=without)
            moved = [self._frame.item(o.shape, 1) for o in self._loads if o.node.id in gone]
            if any(room.pack([*moved, self._frame.item(load.shape, 1)])):
                continue
            gone.add(node.id)
            spare[node.node_type] -= 1
            text = f"its load {load.shape} fits on other nodes; saves ${load.price:.2f}/h"
            reason = Reason(Cause.CONSOLIDATION, text, {"saves_per_hour": load.price})
            result.drains.append(PlannedDrain(node.id, node.node_type, reason))
        return result

    def replacement(self) -> Consolidation:
        """Launch a mix that would hold some of the nodes' loads for clearly less money."""
        groups = [self._loads, self._loads[: len(self._loads) // 2]]
        groups += [[load] for load in self._loads]
        best: tuple[float, Sequence[_Load], list[PlannedLaunch]] | None = None
        for group in filter(None, groups):
            found = self._cheaper(group)
            if found and (best is None or found[0] > best[0] + 1e-9):
                best = (found[0], group, found[1])
        return Consolidation(launches=best[2] if best else [])

    def _cheaper(self, group: Sequence[_Load]) -> tuple[float, list[PlannedLaunch]] | None:
        census = self._census
        replaced = Counter(load.node.node_type for load in group)
        if any(census.serving_by_type[t] - n < self._keep.get(t, 0) for t, n in replaced.items()):
            return None
        market = Market(self._frame, self._shop.machines, census.limits(), census.slots())
        counts = Counter(load.shape for load in group)
        items = [self._frame.item(shape, n) for shape, n in sorted(counts.items())]
        bought = market.buy_all(items)
        if bought is None:
            return None
        cost = sum(load.price for load in group)
        saving = cost - sum(p.count * p.machine.price for p in bought)
        if saving < LEAST_SAVING * cost or not all(p.machine.priced for p in bought):
            return None
        names = ", ".join(f"{n} x {t}" for t, n in sorted(replaced.items()))
        text = f"holds the load of {names} for ${saving:.2f}/h less"
        reason = Reason(Cause.CONSOLIDATION, text, {"saves_per_hour": saving, "now": cost})
        return saving, [
            PlannedLaunch(
                p.machine.node_type,
                p.count,
                reason,
                p.machine.market,
                p.machine.zone,
                p.machine.price,
                throttled=False,
            )
            for p in bought
        ]

    def _receives(self, node: NodeView, replacing: Mapping[str, int]) -> bool:
        """An idle node is about to go by itself, so nothing is moved there, unless it was
        launched for that."""
        return node.phase is Phase.READY and (not node.idle_s or node.node_type in replacing)

    def _load(self, node: NodeView) -> _Load:
        used = {
            name: total - node.available.get(name, 0.0)
            for name, total in node.total.items()
            if not name.startswith("node:")
        }
        node_type = self._census.spec.node_types.get(node.node_type)
        # What runs here may have asked for any label of this type.
        rules = [
            LabelRule(k, (v,)) for k, v in sorted((node_type.labels if node_type else {}).items())
        ]
        shape = Shape.of(
            {n: max(0.0, round(u, 4)) for n, u in used.items()}, [rules] if rules else ()
        )
        return _Load(node, shape, self._census.price_of(node))
