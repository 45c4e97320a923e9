"""The planner: demand, nodes, spec and time in; a Plan out.

It reads no clock, draws no random number and touches nothing. Equal input in any order gives an
equal plan, and a plan that has been carried out leads to an empty one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from shoal.scaling.consolidation import QUIET_S, REPLACING_S, Consolidation, Consolidator
from shoal.scaling.demand import Demand, Shape
from shoal.scaling.inputs import History, NodeView, Offering
from shoal.scaling.interrupted_demand import interrupted_demand
from shoal.scaling.legacy_targets import targets
from shoal.scaling.offerings import Offerings, forget
from shoal.scaling.over_limit import over_limit
from shoal.scaling.resource_vectors import ResourceSpace
from shoal.scaling.scale_down import Shrinkage, Shrinker
from shoal.scaling.scale_up import ScaleUp, ScaleUpResult
from shoal.scaling.scaling_plan import Plan, PlannedLaunch
from shoal.scaling.snapshot import ClusterSnapshot
from shoal.scaling.unmet_demand import Explainer, holds
from shoal.scaling.workload import encode, shapes_of
from shoal.spec.cluster_spec import ClusterSpec

# So many kinds of hopeless demand are named; the rest are counted.
MOST_NAMED = 100


def plan(
    spec: ClusterSpec,
    nodes: Iterable[NodeView],
    demand: Demand,
    history: History,
    now: float,
    offers: Iterable[Offering] = (),
) -> Plan:
    """What the cluster should do now.

    `nodes` are all that exist, the head included; `offers` are what the provider sells, with
    prices and with resources the YAML does not declare. The plan's `history` goes into the next
    call, after `History.after` for every launch that failed meanwhile.
    """
    return _Planning(spec, list(nodes), history, now, list(offers)).plan(demand)


class _Planning:
    """The data of one call."""

    def __init__(
        self,
        spec: ClusterSpec,
        nodes: Sequence[NodeView],
        history: History,
        now: float,
        offers: Sequence[Offering],
    ) -> None:
        self._spec = spec
        self._history = history
        self._now = now
        self._shop = Offerings(spec, offers, history, now)
        self._displaced = interrupted_demand(nodes)
        nodes = [node for node in nodes if not node.doomed]
        whole = ClusterSnapshot(spec, self._shop, nodes)
        self._excess = over_limit(whole)
        leaving = self._excess.leaving
        self._census = ClusterSnapshot(spec, self._shop, nodes, leaving) if leaving else whole

    def plan(self, demand: Demand) -> Plan:
        demand = replace(demand, requests=(*demand.requests, *self._displaced))
        possible, hopeless = self._split(demand)
        frame = ResourceSpace(shapes_of(possible), self._shop.resources.values())
        work = encode(frame, possible, self._holdable)
        grower = ScaleUp(frame, self._census, self._shop, work, displaced=len(self._displaced))
        waiting = bool(work.tasks or work.packed_gangs or work.teams)
        legacy = targets(self._census, self._history, waiting=waiting)
        growth = grower.run(legacy)
        keep = self._keep()
        shrinker = Shrinker(frame, self._census, work, grower.bought, keep, legacy.least)
        shrinkage = shrinker.run(self._history, self._now)
        quiet_since = self._quiet_since(growth, shrinkage)
        consolidation = self._consolidation(legacy.least, quiet_since)
        explainer = Explainer(self._census, self._shop, grower.market, self._now)
        unmet = [*explainer.explain(work, growth), *explainer.over_limit(self._excess.busy)]
        unmet += [explainer.hopeless(*entry) for entry in hopeless[:MOST_NAMED]]
        if len(hopeless) > MOST_NAMED:
            unmet.append(explainer.unnamed(len(hopeless) - MOST_NAMED))
        launches = (*growth.launches, *consolidation.launches)
        drains = (*self._excess.drains, *shrinkage.drains, *consolidation.drains)
        cancels = (*self._excess.cancels, *shrinkage.cancels)
        going = {d.node_id for d in drains} | {c.node_id for c in cancels}
        return Plan(
            launches=launches,
            drains=drains,
            cancels=cancels,
            unmet=tuple(unmet),
            price_per_hour=self._price(launches, going),
            history=self._next_history(shrinkage, consolidation, quiet_since),
        )

    def _split(self, demand: Demand) -> tuple[Demand, list[tuple[Shape, int, str]]]:
        """The demand without what names a resource that nothing has, and that. Axes for such
        resources would only make every vector longer."""
        known = {name for resources in self._shop.resources.values() for name in resources}
        for node, _ in self._census.serving:
            known.update(node.total)

        def hope(shape: Shape) -> bool:
            return all(name in known or name.startswith("node:") for name, _ in shape.resources)

        hopeless = [(r.shape, r.count, str(r.shape)) for r in demand.requests if not hope(r.shape)]
        hopeless += [
            (r.shape, r.count, f"floor {r.shape}") for r in demand.floors if not hope(r.shape)
        ]
        for gang in demand.gangs:
            foreign = [b for b in gang.bundles if not hope(b)]
            if foreign:
                hopeless.append((min(foreign), gang.count, str(gang)))
        possible = Demand(
            tuple(r for r in demand.requests if hope(r.shape)),
            tuple(g for g in demand.gangs if all(map(hope, g.bundles))),
            tuple(r for r in demand.floors if hope(r.shape)),
        )
        return possible, sorted(hopeless)

    def _holdable(self, shape: Shape) -> bool:
        return any(holds(resources, shape) for resources in self._shop.resources.values())

    def _keep(self) -> Counter[str]:
        """How many of each type stay whatever the demand: its minimum, and all of a type that
        consolidation is waiting for."""
        keep = Counter({name: t.min_workers for name, t in self._spec.node_types.items()})
        if self._now < self._history.replacing_until:
            for name in self._history.replacing:
                keep[name] = max(keep[name], self._census.serving_by_type[name])
        return keep

    def _quiet_since(self, growth: ScaleUpResult, shrinkage: Shrinkage) -> float | None:
        """Since when nothing has been wanted or given up; None if something is."""
        stir = growth.launches or growth.work or shrinkage.cancels or self._census.is_growing
        if stir:
            return None
        since = self._history.quiet_since
        return self._now if since is None else since

    def _consolidation(self, least: int, quiet_since: float | None) -> Consolidation:
        if not self._spec.shoal.consolidate or quiet_since is None:
            return Consolidation()
        replacing = self._now < self._history.replacing_until
        if not replacing and self._now - quiet_since < QUIET_S:
            return Consolidation()
        minimums = Counter({name: t.min_workers for name, t in self._spec.node_types.items()})
        consolidator = Consolidator(self._census, self._shop, minimums, least)
        moves = consolidator.moves(self._history.replacing if replacing else {})
        return moves if moves.drains or replacing else consolidator.replacement()

    def _price(self, launches: Iterable[PlannedLaunch], going: set[str]) -> float:
        return self._census.workers_price(going) + math.fsum(
            x.count * (x.price_per_hour or 0.0) for x in launches
        )

    def _next_history(
        self, shrinkage: Shrinkage, consolidation: Consolidation, quiet_since: float | None
    ) -> History:
        before, initial = self._history, self._spec.scaling.initial_workers
        there = sum(self._census.serving_by_type.values())
        replacing, until = before.replacing, before.replacing_until
        if consolidation.launches:
            replacing = dict(Counter(x.node_type for x in consolidation.launches))
            until = self._now + REPLACING_S
        elif self._now >= until:
            replacing, until = {}, 0.0
        return History(
            failures=forget(before.failures, self._now),
            given_up=before.given_up,
            unneeded_since=shrinkage.unneeded_since,
            brought_up=before.brought_up or initial is None or there >= initial,
            quiet_since=quiet_since,
            replacing=replacing,
            replacing_until=until,
        )
