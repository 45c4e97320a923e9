"""Why something has no place, and what would give it one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal.scaling.demand import Resources, Shape
from shoal.scaling.instance_selection import Market
from shoal.scaling.offerings import OfferingBackoff, Offerings
from shoal.scaling.scale_up import ScaleUpResult
from shoal.scaling.scaling_plan import Cause, Reason, Unmet
from shoal.scaling.snapshot import ClusterSnapshot
from shoal.scaling.workload import MOST_KINDS, GangGroup, SingleNodeItem, Workload


class Explainer:
    """Puts what the growth left into words."""

    def __init__(
        self, census: ClusterSnapshot, shop: Offerings, market: Market, now: float
    ) -> None:
        self._census = census
        self._spec = census.spec
        self._shop = shop
        self._market = market
        self._now = now

    def explain(self, work: Workload, growth: ScaleUpResult) -> list[Unmet]:
        """One line for everything that is left waiting."""
        lines = [self._minimum(name, n) for name, n in sorted(growth.below_minimum.items())]
        for floor, n in zip(work.floors, growth.floors.loose, strict=False):
            if n:
                reason, fix = self._why(floor.shape)
                lines.append(Unmet(f"floor {floor.subject}", n, reason, fix))
        for team, n in zip(work.teams, growth.work.teams, strict=False):
            if n:
                lines.append(self._team(team, n))
        loose = (*work.packed_gangs, *work.tasks)
        for entry, n in zip(loose, growth.work.loose, strict=False):
            if n:
                lines.append(self._loose(entry, n))
        if growth.held_back:
            lines.append(self._held_back(growth))
        if work.kinds_left_out:
            lines.append(_left_out(work.kinds_left_out))
        return lines

    def hopeless(self, shape: Shape, count: int, subject: str) -> Unmet:
        """Demand for a resource that nothing here has."""
        reason, fix = self._why(shape)
        return Unmet(subject, count, reason, fix)

    def unnamed(self, kinds: int) -> Unmet:
        """More hopeless demand than anyone wants to read."""
        text = "they need resources that no node or node type has"
        reason = Reason(Cause.INFEASIBLE, text, {"kinds": kinds})
        return Unmet("further kinds that nothing holds", kinds, reason, "see those that are named")

    def over_limit(self, busy: Mapping[str, int]) -> list[Unmet]:
        """Limits that are exceeded by nodes that are at work."""
        text = "the nodes beyond it are busy and go when they are idle"
        return [
            Unmet(what, n, Reason(Cause.OVER_LIMIT, text, {"excess": n}))
            for what, n in sorted(busy.items())
        ]

    def _loose(self, entry: SingleNodeItem, count: int) -> Unmet:
        reason, fix = self._why(entry.shape)
        return Unmet(entry.subject, count, reason, fix)

    def _team(self, team: GangGroup, count: int) -> Unmet:
        subject = str(team.gang)
        for shape in team.shapes:
            if not self._types_for(shape):
                reason, fix = self._why(shape)
                return Unmet(subject, count, reason, fix)
        reason, fix = self._why(team.shapes[0])
        if reason.cause is Cause.LIMIT:
            size = len(team.gang.bundles)
            apart = f" on {size} different nodes" if team.apart else ""
            text = f"{size} bundles{apart} must start together, and {reason.text}"
            reason = Reason(Cause.LIMIT, text, {**reason.numbers, "bundles": size})
        return Unmet(subject, count, reason, fix)

    def _minimum(self, name: str, lacking: int) -> Unmet:
        subject = f"min_workers of {name}"
        resting = self._shop.resting.get(name)
        if resting and self._shop.cheapest(name) is None:
            return Unmet(subject, lacking, self._resting(resting))
        if name in self._shop.given_up:
            return Unmet(subject, lacking, *self._given_up(name))
        return Unmet(subject, lacking, *self._limit([name]))

    def _held_back(self, growth: ScaleUpResult) -> Unmet:
        speed = self._spec.scaling.upscaling_speed
        text = (
            f"upscaling_speed {speed:g} on {self._census.ready_count} ready nodes lets "
            f"{growth.chunk:g} more start now; the rest follow as these come up"
        )
        numbers = {"speed": speed, "allowed": growth.chunk, "held_back": growth.held_back}
        fix = "raise upscaling_speed to start more at once"
        return Unmet("further machines", growth.held_back, Reason(Cause.SPEED, text, numbers), fix)

    def _why(self, shape: Shape) -> tuple[Reason, str]:
        types = self._types_for(shape)
        if not types:
            if self._on_some_node(shape):
                text = "only nodes that are there already could hold it, and they are busy"
                return Reason(Cause.BUSY, text), "wait, or add a node type that can hold it"
            return self._infeasible(shape)
        for_sale = {m.node_type for m in self._market.machines}
        open_ = [t for t in types if t in for_sale]
        with_room = [t for t in types if self._market.limits.get(t, 0) > 0]
        resting = [r for t in with_room for r in self._shop.resting.get(t, ())]
        given_up = [t for t in with_room if t in self._shop.given_up]
        if self._market.slots > 0 and not set(with_room) & set(open_):
            if resting:
                return self._resting(resting), "add another node type, zone or market that would do"
            if given_up:
                return self._given_up(given_up[0])
        return self._limit(types)

    def _resting(self, resting: Sequence[OfferingBackoff]) -> Reason:
        first = min(resting, key=lambda r: (r.until, r.offer.node_type, r.offer.zone))
        ago, wait = self._now - first.last.at, first.until - self._now
        where = f" in {first.offer.zone}" if first.offer.zone else ""
        text = (
            f"{first.offer.node_type} ({first.offer.market}{where}) failed for {first.last.kind} "
            f"{ago:.0f} s ago; next try in {wait:.0f} s"
        )
        return Reason(Cause.CAPACITY, text, {"failed_s_ago": ago, "retry_in_s": wait})

    def _given_up(self, name: str) -> tuple[Reason, str]:
        text = f"{name} was given up: {self._shop.given_up[name]}"
        return Reason(Cause.GIVEN_UP, text), "mend that, then shoal up: it is tried again"

    def _limit(self, types: Sequence[str]) -> tuple[Reason, str]:
        overall = self._spec.scaling.max_workers
        if self._market.slots <= 0:
            text = f"max_workers of the cluster ({overall}) is reached"
            return Reason(Cause.LIMIT, text, {"max_workers": overall}), "raise max_workers"
        limits = {t: self._spec.node_types[t].max_workers for t in types}
        named = ", ".join(f"{t} ({n})" for t, n in sorted(limits.items())[:3])
        text = f"max_workers of {named} does not allow more"
        fix = f"raise max_workers of {min(types)}"
        return Reason(Cause.LIMIT, text, {f"max_workers {t}": n for t, n in limits.items()}), fix

    def _types_for(self, shape: Shape) -> list[str]:
        return [
            name
            for name, resources in sorted(self._shop.resources.items())
            if self._buyable(name) and holds(resources, shape) and self._admitted(name, shape)
        ]

    def _buyable(self, name: str) -> bool:
        return self._spec.node_types[name].max_workers > 0

    def _admitted(self, name: str, shape: Shape) -> bool:
        return any(shape.admits(labels) for labels in self._shop.label_sets(name))

    def _on_some_node(self, shape: Shape) -> bool:
        return any(
            holds(self._census.total_of(n), shape) and shape.admits(self._census.labels_of(n))
            for n, _ in self._census.serving
        )

    def _infeasible(self, shape: Shape) -> tuple[Reason, str]:
        types = {n: r for n, r in self._shop.resources.items() if self._buyable(n)}
        if not types:
            text = "no node type may have workers (max_workers is 0 for all)"
            return Reason(Cause.INFEASIBLE, text), "raise max_workers of a node type"
        lacking = []
        numbers: dict[str, float] = {}
        for name, amount in shape.resources:
            largest = max(r.get(name, 0.0) for r in types.values())
            if largest < amount:
                has = f"largest type has {largest:g}" if largest else "no type has any"
                lacking.append(f"needs {amount:g} {name} on one node; {has}")
                numbers[f"{name} needed"], numbers[f"{name} largest"] = amount, largest
        if lacking:
            needs = ", ".join(f"{n:g} {name}" for name, n in shape.resources)
            fix = f"add a node type with at least {needs}"
            return Reason(Cause.INFEASIBLE, "; ".join(lacking), numbers), fix
        if any(holds(r, shape) for r in types.values()):
            text = "no node type that is large enough has labels that meet its selector"
            return Reason(Cause.INFEASIBLE, text), "give a node type these labels"
        near = _nearest(types, shape)
        text = f"no type has all of it on one node; the nearest, {near[0]}, lacks {near[1]}"
        return Reason(Cause.INFEASIBLE, text), "add a node type that has all of it"


def _left_out(kinds: int) -> Unmet:
    text = f"more than {MOST_KINDS:,} kinds are not planned at once; these follow the others"
    reason = Reason(Cause.LIMIT, text, {"kinds": kinds})
    return Unmet("further kinds of demand", kinds, reason)


def holds(resources: Resources, shape: Shape) -> bool:
    """Whether an empty node with these resources is large enough."""
    return all(resources.get(name, 0.0) >= amount for name, amount in shape.resources)


def _nearest(types: Mapping[str, Resources], shape: Shape) -> tuple[str, str]:
    """The type that lacks the fewest resources, and which."""

    def lacks(name: str) -> list[str]:
        return [r for r, amount in shape.resources if types[name].get(r, 0.0) < amount]

    best = min(sorted(types), key=lambda name: len(lacks(name)))
    return best, " and ".join(lacks(best))
