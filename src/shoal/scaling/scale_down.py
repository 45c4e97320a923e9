"""What to give back: machines on their way that nothing needs any more, then idle nodes.

How many of a kind the pending work could still use is counted for every shape on its own, as if
each needed nodes to itself. That is more than packing would need, on purpose: it can only grow
with the demand, so more demand never gives up a node, and a node is never given up while work
that fits on it is about to start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from shoal.core.node_phase import Phase
from shoal.scaling.greedy_packing import Supply, fits
from shoal.scaling.inputs import History, NodeView
from shoal.scaling.instance_selection import Purchase, add_machines, special_of
from shoal.scaling.placement import most, place
from shoal.scaling.resource_vectors import Item, ResourceSpace
from shoal.scaling.scaling_plan import Cause, PlannedCancel, PlannedDrain, Reason
from shoal.scaling.snapshot import ClusterSnapshot
from shoal.scaling.workload import Workload

# A machine on its way is given up only after nothing has needed it for so long: demand blinks.
CANCEL_AFTER_S = 30.0


@dataclass
class Shrinkage:
    """What to end, and which machines on their way nothing needs, since when."""

    drains: list[PlannedDrain] = field(default_factory=list)
    cancels: list[PlannedCancel] = field(default_factory=list)
    unneeded_since: dict[str, float] = field(default_factory=dict)


class Shrinker:
    """One pass over the nodes that could go. `keep` says how many of a type are wanted for
    reasons outside the demand, `least` how many workers in all."""

    def __init__(
        self,
        frame: ResourceSpace,
        census: ClusterSnapshot,
        work: Workload,
        bought: Iterable[Purchase],
        keep: Mapping[str, int],
        least: int,
    ) -> None:
        self._frame = frame
        self._census = census
        self._work = work
        self._bought = list(bought)
        self._keep = keep
        self._least = least
        self._result = Shrinkage()

    def run(self, history: History, now: float) -> Shrinkage:
        """Everything that may go now."""
        for node in self._unneeded():
            if node.phase is Phase.READY:
                self._result.drains.append(self._idle(node))
                continue
            since = history.unneeded_since.get(node.id, now)
            self._result.unneeded_since[node.id] = since
            if now - since >= CANCEL_AFTER_S:
                self._result.cancels.append(_cancelled(node, now - since))
        return self._result

    def _unneeded(self) -> list[NodeView]:
        """Nodes that neither work, nor floors, nor minimums need, first to go first."""
        could_go = self._census.could_go()
        if not any(map(self._may_go, could_go)):
            return []
        rows: dict[object, list[NodeView]] = {}
        for node in could_go:
            labels = self._frame.label_class(self._census.labels_of(node))
            total = self._census.total_of(node)
            rows.setdefault((node.node_type, self._frame.room(total), labels), []).append(node)
        candidates: list[NodeView] = []
        for nodes in rows.values():
            spare = len(nodes) - self._usable(nodes[0])
            able = sorted(filter(self._may_go, nodes), key=self._census.first_to_go)
            candidates += able[: max(0, spare)]
        candidates.sort(key=self._census.first_to_go)
        return self._beyond_floors(self._beyond_minimums(candidates))

    def _may_go(self, node: NodeView) -> bool:
        return node.phase is not Phase.READY or node.idle_s >= self._timeout(node)

    def _timeout(self, node: NodeView) -> float:
        node_type = self._census.spec.node_types.get(node.node_type)
        return node_type.idle_timeout_s if node_type else 0.0

    def _usable(self, node: NodeView) -> int:
        """How many nodes like this one the pending work could use, shape by shape."""
        total = self._census.total_of(node)
        supply = Supply(
            self._frame.room(total),
            self._frame.label_class(self._census.labels_of(node)),
            special_of(self._frame, total),
            0.0,
            0,
        )
        loose = [entry.item for entry in (*self._work.tasks, *self._work.packed_gangs)]
        nodes = sum(self._nodes_for(supply, item) for item in loose)
        for team in self._work.teams:
            for bundle in team.bundles:
                if team.apart:
                    each = self._frame.resized(bundle, team.count)
                    nodes += bundle.count * self._nodes_for(supply, each)
                else:
                    every = self._frame.resized(bundle, bundle.count * team.count)
                    nodes += self._nodes_for(supply, every)
        return nodes

    def _nodes_for(self, supply: Supply, item: Item) -> int:
        copies = fits(self._frame, supply, item)
        return -(-item.count // copies) if copies else 0

    def _beyond_minimums(self, nodes: list[NodeView]) -> list[NodeView]:
        left = Counter(self._census.serving_by_type)
        total = sum(left.values())
        spare = []
        for node in nodes:
            if left[node.node_type] > self._keep.get(node.node_type, 0) and total > self._least:
                left[node.node_type] -= 1
                total -= 1
                spare.append(node)
        return spare

    def _beyond_floors(self, nodes: list[NodeView]) -> list[NodeView]:
        """As many, first to go first, as the floors can spare."""
        floors = self._work.floors
        if not floors or not nodes:
            return nodes

        def missing(without: int) -> int:
            gone = {n.id for n in nodes[:without]}
            room = self._census.room(self._frame, whole=True, without=gone)
            for purchase in self._bought:
                add_machines(room, purchase)
            return sum(place(room, (), floors).loose)

        now = missing(0)
        return nodes[: most(len(nodes), lambda without: missing(without) <= now)]

    def _idle(self, node: NodeView) -> PlannedDrain:
        timeout = self._timeout(node)
        text = f"idle for {_time(node.idle_s)}; idle timeout is {_time(timeout)}"
        reason = Reason(Cause.IDLE, text, {"idle_s": node.idle_s, "timeout_s": timeout})
        return PlannedDrain(node.id, node.node_type, reason)


def _cancelled(node: NodeView, seconds: float) -> PlannedCancel:
    text = f"still {node.phase}, and nothing has needed it for {_time(seconds)}"
    return PlannedCancel(
        node.id, node.node_type, Reason(Cause.UNNEEDED, text, {"unneeded_s": seconds})
    )


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return (
        f"{minutes} min {rest} s"
        if minutes and rest
        else f"{minutes} min"
        if minutes
        else f"{rest} s"
    )
