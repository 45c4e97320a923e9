"""Scale down: cancel launching nodes that nothing needs any more, and drain idle nodes.

The rule is a conservative count, not a packing: for each group of equal nodes, every pending shape
counts the nodes it could use as if it had them to itself. The count can only grow with the demand.
So more demand never removes a node, and a node is never removed while work that fits on it is about
to start. Minimums and floors are kept. Nodes above a lowered limit are found by `over_limit`,
before anything else is planned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from shoal.core.node_phase import Phase
from shoal.scaling.greedy_packing import BinType, copies_that_fit
from shoal.scaling.inputs import History, NodeView
from shoal.scaling.instance_selection import Selection, add_selection, scarce_bits
from shoal.scaling.placement import largest_feasible, place
from shoal.scaling.resource_vectors import Item, ResourceSpace
from shoal.scaling.scaling_plan import Cause, PlannedCancel, PlannedDrain, Reason
from shoal.scaling.snapshot import ClusterSnapshot
from shoal.scaling.workload import Workload

# Demand is noisy: a launching node is cancelled only after nothing has needed it for this long.
CANCEL_AFTER_S = 30.0
# An outdated node is replaced when it has been idle for this long.
OUTDATED_AFTER_S = 30.0


@dataclass
class ScaleDownResult:
    """What to drain and cancel, and since when each unneeded launching node has been unneeded."""

    drains: list[PlannedDrain] = field(default_factory=list)
    cancels: list[PlannedCancel] = field(default_factory=list)
    unneeded_since: dict[str, float] = field(default_factory=dict)


class ScaleDown:
    """One pass over the idle and launching nodes. `min_by_type` and `min_total` are the workers to
    keep regardless of demand, per type and in total; `selected` are the launches of this plan."""

    def __init__(
        self,
        space: ResourceSpace,
        snapshot: ClusterSnapshot,
        workload: Workload,
        selected: Iterable[Selection],
        min_by_type: Mapping[str, int],
        min_total: int,
    ) -> None:
        self._space = space
        self._snapshot = snapshot
        self._workload = workload
        self._selected = list(selected)
        self._min_by_type = min_by_type
        self._min_total = min_total
        self._result = ScaleDownResult()

    def run(self, history: History, now: float) -> ScaleDownResult:
        """Everything to remove now."""
        for node in self._unneeded():
            if node.phase is Phase.READY:
                self._result.drains.append(self._drain(node))
                continue
            since = history.unneeded_since.get(node.id, now)
            self._result.unneeded_since[node.id] = since
            if now - since >= CANCEL_AFTER_S:
                self._result.cancels.append(_cancel(node, now - since))
        return self._result

    def _unneeded(self) -> list[NodeView]:
        """Nodes that no pending work, floor or minimum needs, in removal order."""
        idle_or_launching = self._snapshot.idle_or_launching()
        if not any(map(self._is_removable, idle_or_launching)):
            return []
        rows: dict[object, list[NodeView]] = {}
        for node in idle_or_launching:
            rows.setdefault(self._group(node), []).append(node)
        candidates: list[NodeView] = []
        for nodes in rows.values():
            spare = len(nodes) - self._nodes_usable_by_demand(nodes[0])
            removable = sorted(filter(self._is_removable, nodes), key=self._snapshot.removal_order)
            candidates += removable[: max(0, spare)]
        candidates.sort(key=self._snapshot.removal_order)
        return self._above_floors(self._above_minimums(candidates))

    def _is_removable(self, node: NodeView) -> bool:
        is_idle = node.phase is not Phase.READY or node.idle_s >= self._idle_timeout(node)
        return is_idle and not node.unreachable

    def _idle_timeout(self, node: NodeView) -> float:
        node_type = self._snapshot.spec.node_types.get(node.node_type)
        return node_type.idle_timeout_s if node_type else 0.0

    def _nodes_usable_by_demand(self, node: NodeView) -> int:
        """How many nodes equal to this one the pending work could use, shape by shape."""
        total = self._snapshot.total_of(node)
        bin_type = BinType(
            self._space.vector(total),
            self._space.label_class(self._snapshot.labels_of(node)),
            scarce_bits(self._space, total),
            0.0,
            0,
        )
        items = [entry.item for entry in (*self._workload.tasks, *self._workload.strict_pack_gangs)]
        nodes = sum(self._nodes_for(bin_type, item) for item in items)
        for gang_group in self._workload.gang_groups:
            for bundle in gang_group.bundles:
                if gang_group.strict_spread:
                    one_each = self._space.resized(bundle, gang_group.count)
                    nodes += bundle.count * self._nodes_for(bin_type, one_each)
                else:
                    all_copies = self._space.resized(bundle, bundle.count * gang_group.count)
                    nodes += self._nodes_for(bin_type, all_copies)
        return nodes

    def _nodes_for(self, bin_type: BinType, item: Item) -> int:
        copies = copies_that_fit(self._space, bin_type, item)
        return -(-item.count // copies) if copies else 0

    def _above_minimums(self, nodes: list[NodeView]) -> list[NodeView]:
        # An unreachable node may be lost, so the minimums are kept without it.
        by_type = self._snapshot.serving_by_type - self._snapshot.unreachable_by_type
        total = sum(by_type.values())
        spare = []
        for node in nodes:
            if (
                by_type[node.node_type] > self._min_by_type.get(node.node_type, 0)
                and total > self._min_total
            ):
                by_type[node.node_type] -= 1
                total -= 1
                spare.append(node)
        return spare

    def _above_floors(self, nodes: list[NodeView]) -> list[NodeView]:
        """The nodes that the floors do not need: of each group of equal nodes, as many as can go,
        one group after the other."""
        floors = self._workload.floors
        if not floors or not nodes:
            return nodes
        groups: dict[object, list[NodeView]] = {}
        for node in nodes:
            groups.setdefault(self._group(node), []).append(node)
        removed: set[str] = set()

        def unplaced(more: Iterable[NodeView]) -> int:
            free_capacity = self._snapshot.free_capacity(
                self._space, ignore_usage=True, without={*removed, *(n.id for n in more)}
            )
            for selection in self._selected:
                add_selection(free_capacity, selection)
            return sum(place(free_capacity, tasks=floors).tasks)

        now = unplaced(())
        for group in groups.values():

            def can_go(count: int, group: list[NodeView] = group) -> bool:
                return unplaced(group[:count]) <= now

            removed.update(n.id for n in group[: largest_feasible(len(group), can_go)])
        return [n for n in nodes if n.id in removed]

    def _group(self, node: NodeView) -> object:
        """Equal for nodes that can hold the same work."""
        labels = self._space.label_class(self._snapshot.labels_of(node))
        return node.node_type, self._space.vector(self._snapshot.total_of(node)), labels

    def _drain(self, node: NodeView) -> PlannedDrain:
        timeout = self._idle_timeout(node)
        text = f"idle for {_duration(node.idle_s)}; idle timeout is {_duration(timeout)}"
        reason = Reason(Cause.IDLE, text, {"idle_s": node.idle_s, "timeout_s": timeout})
        return PlannedDrain(node.id, node.node_type, reason)


def _cancel(node: NodeView, seconds: float) -> PlannedCancel:
    text = f"still {node.phase}; no pending work has needed it for {_duration(seconds)}"
    return PlannedCancel(
        node.id, node.node_type, Reason(Cause.UNNEEDED, text, {"unneeded_s": seconds})
    )


@dataclass
class OverLimit:
    """Nodes to remove because of a limit, and how many above each limit are busy."""

    drains: list[PlannedDrain] = field(default_factory=list)
    cancels: list[PlannedCancel] = field(default_factory=list)
    busy: Counter[str] = field(default_factory=Counter)

    @property
    def leaving(self) -> set[str]:
        """The ids of all nodes to remove."""
        return {d.node_id for d in self.drains} | {c.node_id for c in self.cancels}


def over_limit(snapshot: ClusterSnapshot) -> OverLimit:
    """Nodes above `max_workers` of their type or of the cluster, for instance after it was lowered
    or a type was removed from the file. Launching and idle ones are removed now; busy ones stay
    until they are idle. Unreachable nodes do not count here: a healthy one would go in their
    place."""
    result = OverLimit()
    spec = snapshot.spec
    for name, count in sorted(snapshot.by_type.items()):
        node_type = spec.node_types.get(name)
        reachable = count - snapshot.unreachable_by_type[name]
        excess = reachable - (node_type.max_workers if node_type else 0)
        limit = f"max_workers of {name}" if node_type else f"the cluster file (no node type {name})"
        _remove_excess(result, snapshot, name, excess, limit)
    reachable = snapshot.worker_count - sum(snapshot.unreachable_by_type.values())
    excess = reachable - len(result.leaving) - spec.scaling.max_workers
    _remove_excess(result, snapshot, None, excess, "max_workers")
    return result


def add_outdated(result: OverLimit, snapshot: ClusterSnapshot) -> None:
    """Drain idle nodes whose launch settings have changed, so that new ones replace them. Busy ones
    stay until they are idle; those that are idle only for a moment are about to get work."""
    leaving = result.leaving
    for node in snapshot.idle_or_launching():
        if (
            node.outdated
            and node.phase is Phase.READY
            and node.idle_s >= OUTDATED_AFTER_S
            and node.id not in leaving
        ):
            text = (
                f"idle for {_duration(node.idle_s)}, and launched from settings of "
                f"{node.node_type} that have changed since"
            )
            reason = Reason(Cause.OUTDATED, text, {"idle_s": node.idle_s})
            result.drains.append(PlannedDrain(node.id, node.node_type, reason))


def _remove_excess(
    result: OverLimit, snapshot: ClusterSnapshot, node_type: str | None, excess: int, limit: str
) -> None:
    if excess <= 0:
        return
    nodes = [
        n for n in snapshot.workers(node_type) if n.phase is Phase.DRAINING or not n.unreachable
    ]
    # Draining nodes are leaving already.
    excess -= sum(n.phase is Phase.DRAINING for n in nodes)
    leaving = result.leaving
    removable = [
        n
        for n in nodes
        if n.id not in leaving
        and n.phase is not Phase.DRAINING
        and (n.phase is not Phase.READY or n.idle_s > 0)
    ]
    removed = sorted(removable, key=snapshot.removal_order)[: max(0, excess)]
    for node in removed:
        text = f"{len(nodes)} nodes are {excess} more than {limit} allows"
        reason = Reason(Cause.OVER_LIMIT, text, {"nodes": len(nodes), "beyond": excess})
        if node.phase is Phase.READY:
            result.drains.append(PlannedDrain(node.id, node.node_type, reason))
        else:
            result.cancels.append(PlannedCancel(node.id, node.node_type, reason))
    if excess > len(removed):
        result.busy[limit] += excess - len(removed)


def _duration(seconds: float) -> str:
    minutes, seconds_left = divmod(round(seconds), 60)
    return (
        f"{minutes} min {seconds_left} s"
        if minutes and seconds_left
        else f"{minutes} min"
        if minutes
        else f"{seconds_left} s"
    )
