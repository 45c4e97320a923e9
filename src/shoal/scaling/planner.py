"""The planner: a pure function from demand, nodes, spec, history and time to a Plan.

Inputs
    spec       node types with limits, timeouts and priorities; cluster-wide scaling settings
    nodes      every node with its phase and, once it is ready, Ray's resource figures
    demand     pending shapes with counts, gangs (placement groups), floors (request_resources)
    history    failures, backoff and timers, as the previous Plan returned them
    now        the time; the planner reads no clock
    offerings  what the provider sells: node type, market, zone, price

Stages
    1. over_limit     remove nodes above a limit that was lowered, and idle outdated ones
    2. split          set infeasible demand aside; encode the rest as resource vectors
    3. ScaleUp        launch for minimums, floors, gangs, initial_workers, tasks, utilization
    4. ScaleDown      cancel launching nodes and drain idle nodes that nothing needs
    5. Consolidator   if enabled and the cluster has been quiet: move work to cheaper nodes
    6. Explainer      say why the rest of the demand is unmet, and what would help

Output: a Plan with launches, drains, cancellations and unmet demand, each with a Reason, and the
history for the next call.

Invariants
    - Limits are never exceeded, and a gang is served whole or not at all.
    - Equal input, in any order, gives an equal plan: no clock, no randomness, no I/O.
    - A plan that has been carried out is followed by an empty one.
    - More demand never removes a node.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from shoal.scaling.consolidation import QUIET_S, REPLACEMENT_TIMEOUT_S, Consolidation, Consolidator
from shoal.scaling.demand import (
    Demand,
    Resources,
    Shape,
    Strategy,
    floor_name,
    interrupted_demand,
)
from shoal.scaling.inputs import History, NodeView, Offering
from shoal.scaling.offerings import Offerings, recent_failures
from shoal.scaling.resource_vectors import ResourceSpace
from shoal.scaling.scale_down import ScaleDown, ScaleDownResult, add_outdated, over_limit
from shoal.scaling.scale_up import ScaleUp, ScaleUpResult
from shoal.scaling.scaling_plan import Plan, PlannedLaunch, Unmet
from shoal.scaling.snapshot import ClusterSnapshot
from shoal.scaling.target_utilization import legacy_targets
from shoal.scaling.unmet_demand import Explainer, can_hold
from shoal.scaling.workload import Workload, encode, merged_bundles, shapes_of
from shoal.spec.cluster_spec import ClusterSpec

# So many infeasible shapes are listed; the rest are counted.
MAX_INFEASIBLE_LISTED = 100


def plan(
    spec: ClusterSpec,
    nodes: Iterable[NodeView],
    demand: Demand,
    history: History,
    now: float,
    offerings: Iterable[Offering] = (),
) -> Plan:
    """What the cluster should do now.

    `nodes` are all that exist, the head included; `offerings` are what the provider sells, with
    prices and with resources that the YAML does not declare. Pass the plan's `history` into the
    next call, after `History.with_failure` for every launch that failed in between.
    """
    return _PlanningPass(spec, list(nodes), history, now, list(offerings)).plan(demand)


class _PlanningPass:
    """The data of one call."""

    def __init__(
        self,
        spec: ClusterSpec,
        nodes: Sequence[NodeView],
        history: History,
        now: float,
        offerings: Sequence[Offering],
    ) -> None:
        self._spec = spec
        self._history = history
        self._now = now
        self._offerings = Offerings(spec, offerings, history, now)
        self._interrupted_requests = interrupted_demand(nodes)
        nodes = [node for node in nodes if not node.interrupted]
        all_nodes = ClusterSnapshot(spec, self._offerings, nodes)
        self._node_kinds: list[tuple[Resources, dict[str, str]]] | None = None
        self._over_limit = over_limit(all_nodes)
        add_outdated(self._over_limit, all_nodes)
        leaving = self._over_limit.leaving
        self._snapshot = (
            ClusterSnapshot(spec, self._offerings, nodes, leaving) if leaving else all_nodes
        )

    def plan(self, demand: Demand) -> Plan:
        demand = replace(demand, requests=(*demand.requests, *self._interrupted_requests))
        feasible, infeasible = self._split_feasible(demand)
        space = ResourceSpace(shapes_of(feasible), self._offerings.resources.values())
        workload = encode(space, feasible, self._fits_some_type)
        scale_up = ScaleUp(
            space,
            self._snapshot,
            self._offerings,
            workload,
            interrupted=len(self._interrupted_requests),
        )
        has_pending_work = bool(
            workload.tasks or workload.strict_pack_gangs or workload.gang_groups
        )
        legacy = legacy_targets(self._snapshot, self._history, has_pending_work=has_pending_work)
        scale_up_result = scale_up.run(legacy)
        min_by_type = self._min_by_type()
        scale_down = ScaleDown(
            space, self._snapshot, workload, scale_up.selected, min_by_type, legacy.min_workers
        )
        scale_down_result = scale_down.run(self._history, self._now)
        quiet_since = self._quiet_since(scale_up_result, scale_down_result)
        consolidation = self._consolidation(legacy.min_workers, quiet_since)
        unmet = self._unmet(space, scale_up, workload, scale_up_result, infeasible)
        launches = (*scale_up_result.launches, *consolidation.launches)
        drains = (*self._over_limit.drains, *scale_down_result.drains, *consolidation.drains)
        cancels = (*self._over_limit.cancels, *scale_down_result.cancels)
        removed = {d.node_id for d in drains} | {c.node_id for c in cancels}
        return Plan(
            launches=launches,
            drains=drains,
            cancels=cancels,
            unmet=tuple(unmet),
            price_per_hour=self._price(launches, removed),
            history=self._next_history(scale_down_result, consolidation, quiet_since),
        )

    def _unmet(
        self,
        space: ResourceSpace,
        scale_up: ScaleUp,
        workload: Workload,
        scale_up_result: ScaleUpResult,
        infeasible: Sequence[tuple[Shape, int, str]],
    ) -> list[Unmet]:
        explainer = Explainer(
            self._snapshot, self._offerings, scale_up.instance_selector, self._now, space
        )
        unmet = [
            *explainer.explain(workload, scale_up_result),
            *explainer.over_limit(self._over_limit.busy),
        ]
        listed, unlisted = infeasible[:MAX_INFEASIBLE_LISTED], infeasible[MAX_INFEASIBLE_LISTED:]
        unmet += [explainer.infeasible_demand(*entry) for entry in listed]
        return [*unmet, explainer.unlisted(len(unlisted))] if unlisted else unmet

    def _split_feasible(self, demand: Demand) -> tuple[Demand, list[tuple[Shape, int, str]]]:
        """The demand without shapes that fit on no node type and on no node, and those shapes. They
        would only stand in the way of packing the others."""
        known: dict[Shape, bool] = {}

        def is_feasible(shape: Shape) -> bool:
            if shape not in known:
                known[shape] = self._fits_some_type(shape) or self._fits_some_node(shape)
            return known[shape]

        infeasible: Counter[tuple[Shape, str]] = Counter()
        for request in demand.requests:
            if not is_feasible(request.shape):
                infeasible[request.shape, str(request.shape)] += request.count
        for floor in demand.floors:
            if not is_feasible(floor.shape):
                infeasible[floor.shape, floor_name(floor.shape)] += floor.count
        gangs = []
        for gang in demand.gangs:
            is_packed = gang.strategy is Strategy.STRICT_PACK
            needs = [merged_bundles(gang.bundles)] if is_packed else gang.bundles
            wrong = [shape for shape in needs if not is_feasible(shape)]
            if wrong:
                infeasible[min(wrong), str(gang)] += gang.count
            else:
                gangs.append(gang)
        feasible = Demand(
            tuple(r for r in demand.requests if is_feasible(r.shape)),
            tuple(gangs),
            tuple(r for r in demand.floors if is_feasible(r.shape)),
        )
        rows = [(shape, n, subject) for (shape, subject), n in infeasible.items() if n]
        return feasible, sorted(rows)

    def _fits_some_node(self, shape: Shape) -> bool:
        if self._node_kinds is None:
            kinds = {
                (tuple(sorted(self._snapshot.total_of(n).items())),
                 tuple(sorted(self._snapshot.labels_of(n).items())))
                for n, _ in self._snapshot.serving
            }  # fmt: skip
            self._node_kinds = [(dict(total), dict(labels)) for total, labels in kinds]
        return any(
            can_hold(total, shape) and shape.matches(labels) for total, labels in self._node_kinds
        )

    def _fits_some_type(self, shape: Shape) -> bool:
        """Whether a node of some type that allows workers could hold a shape."""
        return any(
            can_hold(resources, shape)
            and any(shape.matches(labels) for labels in self._offerings.label_sets(name))
            for name, resources in self._offerings.resources.items()
            if self._spec.node_types[name].max_workers > 0
        )

    def _min_by_type(self) -> Counter[str]:
        """How many workers of each type to keep regardless of demand: `min_workers`, and all of a
        type that consolidation has launched as replacements."""
        min_by_type = Counter({name: t.min_workers for name, t in self._spec.node_types.items()})
        if self._now < self._history.replacements_until:
            for name in self._history.replacements:
                min_by_type[name] = max(min_by_type[name], self._snapshot.serving_by_type[name])
        return min_by_type

    def _quiet_since(
        self, scale_up_result: ScaleUpResult, scale_down_result: ScaleDownResult
    ) -> float | None:
        """Since when nothing has been launched, cancelled or unplaced; None if something is."""
        is_active = (
            scale_up_result.launches
            or scale_up_result.unplaced
            or scale_down_result.cancels
            or self._snapshot.launching_count
        )
        if is_active:
            return None
        since = self._history.quiet_since
        return self._now if since is None else since

    def _consolidation(self, min_total: int, quiet_since: float | None) -> Consolidation:
        if not self._spec.shoal.consolidate or quiet_since is None:
            return Consolidation()
        is_replacing = self._now < self._history.replacements_until
        if not is_replacing and self._now - quiet_since < QUIET_S:
            return Consolidation()
        minimums = Counter({name: t.min_workers for name, t in self._spec.node_types.items()})
        consolidator = Consolidator(self._snapshot, self._offerings, minimums, min_total)
        consolidation = consolidator.drain_movable(
            self._history.replacements if is_replacing else {}
        )
        if consolidation.drains or is_replacing:
            return consolidation
        return consolidator.launch_replacements()

    def _price(self, launches: Iterable[PlannedLaunch], removed: set[str]) -> float:
        return self._snapshot.workers_price(removed) + math.fsum(
            x.count * (x.price_per_hour or 0.0) for x in launches
        )

    def _next_history(
        self,
        scale_down_result: ScaleDownResult,
        consolidation: Consolidation,
        quiet_since: float | None,
    ) -> History:
        before, initial = self._history, self._spec.scaling.initial_workers
        workers = sum(self._snapshot.serving_by_type.values())
        replacements, until = before.replacements, before.replacements_until
        if consolidation.launches:
            replacements = dict(Counter(x.node_type for x in consolidation.launches))
            until = self._now + REPLACEMENT_TIMEOUT_S
        elif self._now >= until:
            replacements, until = {}, 0.0
        return History(
            failures=recent_failures(before.failures, self._now),
            blocked=before.blocked,
            unneeded_since=scale_down_result.unneeded_since,
            initial_workers_reached=(
                before.initial_workers_reached or initial is None or workers >= initial
            ),
            quiet_since=quiet_since,
            replacements=replacements,
            replacements_until=until,
        )
