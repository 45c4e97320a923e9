"""Why demand cannot be met, and what would help."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shoal.scaling.demand import Resources, Shape, floor_name
from shoal.scaling.instance_selection import InstanceSelector
from shoal.scaling.limit_check import BindingLimits, LimitCheck, UnmetItems
from shoal.scaling.offerings import InstanceOption, OfferingBackoff, Offerings
from shoal.scaling.resource_vectors import Item, ResourceSpace, implicit_amount
from shoal.scaling.scale_up import ScaleUpResult
from shoal.scaling.scaling_plan import MINIMUM_SUBJECT, Cause, Reason, Unmet
from shoal.scaling.snapshot import ClusterSnapshot
from shoal.scaling.workload import MAX_SHAPES, GangGroup, Workload

_MAX_TYPES_NAMED = 3


class Explainer:
    """Explains what a plan leaves unmet."""

    def __init__(
        self,
        snapshot: ClusterSnapshot,
        offerings: Offerings,
        instance_selector: InstanceSelector,
        now: float,
        space: ResourceSpace,
    ) -> None:
        self._space = space
        self._snapshot = snapshot
        self._spec = snapshot.spec
        self._offerings = offerings
        self._instance_selector = instance_selector
        self._now = now
        self._rows: list[UnmetItems] = []
        self._minimums: Mapping[str, int] = {}

    def explain(self, workload: Workload, scale_up_result: ScaleUpResult) -> list[Unmet]:
        """One entry for everything that the scale-up left over."""
        self._minimums = scale_up_result.below_minimum
        unmet = [self._minimum(name, n) for name, n in sorted(self._minimums.items())]
        rows = self._unmet_rows(workload, scale_up_result)
        self._rows = [row.needs for row in rows]
        unmet += [self._unmet(row) for row in rows]
        if scale_up_result.deferred:
            unmet.append(self._deferred(scale_up_result))
        if scale_up_result.waiting:
            unmet.append(self._waiting(scale_up_result.waiting))
        if workload.shapes_left_out:
            unmet.append(_shapes_left_out(workload.shapes_left_out))
        return unmet

    def _unmet_rows(self, workload: Workload, scale_up_result: ScaleUpResult) -> list[_UnmetRow]:
        unplaced = scale_up_result.unplaced
        rows = [
            self._row(floor_name(floor.shape), n, [floor.shape], [floor.item])
            for floor, n in zip(
                workload.floors, scale_up_result.unplaced_floors.tasks, strict=False
            )
            if n
        ]
        for gang_group, n in zip(workload.gang_groups, unplaced.gang_groups, strict=False):
            if n:
                subject, shapes = str(gang_group.gang), gang_group.shapes
                rows.append(self._row(subject, n, shapes, gang_group.bundles, gang_group))
        single_items = (*workload.strict_pack_gangs, *workload.tasks)
        left = (*unplaced.strict_pack_gangs, *unplaced.tasks)
        for entry, n in zip(single_items, left, strict=False):
            if n:
                rows.append(self._row(entry.subject, n, [entry.shape], [entry.item]))
        return rows

    def _row(
        self,
        subject: str,
        count: int,
        shapes: Sequence[Shape],
        items: Sequence[Item],
        gang_group: GangGroup | None = None,
    ) -> _UnmetRow:
        is_spread = gang_group is not None and gang_group.strict_spread
        if not is_spread:
            each = [i.count if gang_group else 1 for i in items]
            items = [self._space.resized(i, n * count) for i, n in zip(items, each, strict=True)]
        types = frozenset(t for shape in shapes for t in self._types_for(shape))
        needs = UnmetItems(tuple(items), count if is_spread else 0, types)
        return _UnmetRow(subject, count, tuple(shapes), needs, gang_group)

    def infeasible_demand(self, shape: Shape, count: int, subject: str) -> Unmet:
        """Demand for a resource that no node and no node type has."""
        reason_and_fix = self._not_launchable(shape) or self._infeasible(shape)
        return Unmet(subject, count, *reason_and_fix)

    def unlisted(self, shapes: int) -> Unmet:
        """Infeasible shapes beyond those that are listed."""
        text = "these fit on no node and on no node type"
        reason = Reason(Cause.INFEASIBLE, text, {"shapes": shapes})
        return Unmet("more infeasible shapes", shapes, reason, "see the shapes that are listed")

    def over_limit(self, busy: Mapping[str, int]) -> list[Unmet]:
        """Limits that busy nodes exceed."""
        text = "the nodes above the limit are busy; they are removed when idle"
        return [
            Unmet(limit, n, Reason(Cause.OVER_LIMIT, text, {"excess": n}))
            for limit, n in sorted(busy.items())
        ]

    def _unmet(self, row: _UnmetRow) -> Unmet:
        for shape in row.shapes:
            reason_and_fix = self._not_launchable(shape)
            if reason_and_fix:
                return Unmet(row.subject, row.count, *self._with_limits(*reason_and_fix, row.needs))
        limits = self._limit_check(self._instance_selector.all_options)
        reason, fix = self._binding_limits(limits.binding(row.needs))
        if row.gang_group:
            size = len(row.gang_group.gang.bundles)
            nodes = f" on {size} different nodes" if row.gang_group.strict_spread else ""
            bundles = "bundle" if size == 1 else "bundles"
            text = f"{size} {bundles}{nodes} must start together, and {reason.text}"
            reason = Reason(Cause.LIMIT, text, {**reason.numbers, "bundles": size})
        return Unmet(row.subject, row.count, reason, fix)

    def _limit_check(self, options: Sequence[InstanceOption]) -> LimitCheck:
        return LimitCheck(self._space, self._instance_selector, options, self._rows, self._minimums)

    def _with_limits(self, reason: Reason, fix: str, needs: UnmetItems) -> tuple[Reason, str]:
        """Why nothing is launched, with the limits that would be in the way of that as well."""
        if reason.cause is Cause.CAPACITY:
            limits = self._limit_check(self._offerings.options_after_backoff)
        elif reason.cause is Cause.BLOCKED:
            limits = self._limit_check(self._offerings.all_options)
        else:
            return reason, fix
        if limits.allow(needs):
            return reason, fix
        return self._and(reason, fix, limits.binding(needs))

    def _and(self, reason: Reason, fix: str, binding: BindingLimits) -> tuple[Reason, str]:
        limits, raise_limits = self._binding_limits(binding)
        numbers = {**reason.numbers, **limits.numbers}
        text = f"{reason.text}; also, {limits.text}"
        return Reason(reason.cause, text, numbers), f"{fix}, and {raise_limits}"

    def _minimum(self, name: str, lacking: int) -> Unmet:
        subject = f"{MINIMUM_SUBJECT}{name}"
        selector = self._instance_selector
        is_type_full = selector.remaining_by_type[name] < lacking
        backing_off = self._offerings.backing_off.get(name)
        not_launchable = None
        if backing_off and self._offerings.cheapest(name) is None:
            not_launchable = self._backing_off(backing_off)
        elif name in self._offerings.blocked:
            not_launchable = self._blocked(name)
        if not_launchable:
            # Minimums are launched in order of name: those before may take what the limit leaves.
            allowed = selector.remaining_by_type
            before = sum(min(n, allowed[t]) for t, n in self._minimums.items() if t < name)
            is_cluster_full = selector.remaining < before + lacking
            binding = BindingLimits(is_cluster_full, (name,) if is_type_full else ())
            if is_cluster_full or is_type_full:
                not_launchable = self._and(*not_launchable, binding)
            return Unmet(subject, lacking, *not_launchable)
        is_cluster_full = selector.remaining < lacking
        types = (name,) if is_type_full or not is_cluster_full else ()
        return Unmet(subject, lacking, *self._binding_limits(BindingLimits(is_cluster_full, types)))

    def _deferred(self, scale_up_result: ScaleUpResult) -> Unmet:
        speed = self._spec.scaling.upscaling_speed
        text = (
            f"upscaling_speed {speed:g} with {self._snapshot.ready_count} ready nodes allows "
            f"{scale_up_result.launch_budget:g} launches now; the rest follow as these become ready"
        )
        numbers = {
            "speed": speed,
            "allowed": scale_up_result.launch_budget,
            "held_back": scale_up_result.deferred,
        }
        fix = "raise upscaling_speed to launch more at once"
        return Unmet(
            "more workers", scale_up_result.deferred, Reason(Cause.SPEED, text, numbers), fix
        )

    def _waiting(self, launches: int) -> Unmet:
        limit = self._spec.shoal.max_concurrent_launches
        text = (
            f"max_concurrent_launches ({limit}) is reached; the rest follow as these become ready"
        )
        reason = Reason(Cause.SPEED, text, {"allowed": limit, "held_back": launches})
        return Unmet("more workers", launches, reason, "raise max_concurrent_launches")

    def _not_launchable(self, shape: Shape) -> tuple[Reason, str] | None:
        """Why no instance can be launched for a shape now, whatever the limits are."""
        types = self._types_for(shape)
        if not types:
            if self._fits_existing_node(shape):
                text = "it fits only on existing nodes, and they are busy"
                return Reason(Cause.BUSY, text), "wait, or add a node type that it fits on"
            return self._infeasible(shape)
        if any(
            o.node_type in types and shape.matches(o.labels)
            for o in self._instance_selector.all_options
        ):
            return None
        backing_off = [b for t in types for b in self._offerings.backing_off.get(t, ())]
        if backing_off:
            return self._backing_off(backing_off)
        blocked = [t for t in types if t in self._offerings.blocked]
        return self._blocked(blocked[0]) if blocked else None

    def _backing_off(self, backing_off: Sequence[OfferingBackoff]) -> tuple[Reason, str]:
        first = min(backing_off, key=lambda b: (b.until, b.offering.node_type, b.offering.zone))
        offering, failure = first.offering, first.last_failure
        ago, wait = self._now - failure.at, first.until - self._now
        zone = f" in {offering.zone}" if offering.zone else ""
        # The reason is read later, elsewhere: a duration would be wrong then.
        retry_at = time.strftime("%H:%M:%S UTC", time.gmtime(first.until))
        what = "setup" if failure.kind == "setup" else "launch"
        why = "" if failure.kind == "setup" else f" ({failure.kind})"
        text = (
            f"{what} of {offering.node_type} ({offering.market}{zone}) failed{why}; "
            f"next try at {retry_at}"
        )
        reason = Reason(Cause.CAPACITY, text, {"failed_s_ago": ago, "retry_in_s": wait})
        return reason, "wait, or add another node type, zone or market that it fits on"

    def _blocked(self, name: str) -> tuple[Reason, str]:
        text = f"{name} is not launched any more: {self._offerings.blocked[name]}"
        return Reason(Cause.BLOCKED, text), (
            f"fix the cause, then retry: shoal up {self._spec.cluster_name}"
        )

    def _binding_limits(self, binding: BindingLimits) -> tuple[Reason, str]:
        selector, texts, fixes = self._instance_selector, [], []
        numbers: dict[str, float] = {}
        if binding.cluster:
            overall = self._spec.scaling.max_workers
            texts.append(_limit_text(f"the cluster ({overall})", selector.remaining))
            fixes.append("max_workers")
            numbers["max_workers"] = overall
        if binding.types:
            limits = {t: self._spec.node_types[t].max_workers for t in binding.types}
            named = ", ".join(f"{t} ({n})" for t, n in sorted(limits.items())[:_MAX_TYPES_NAMED])
            more = len(limits) - _MAX_TYPES_NAMED
            named += f" and {more} more types" if more > 0 else ""
            allowed = sum(max(0, selector.remaining_by_type[t]) for t in binding.types)
            texts.append(_limit_text(named, allowed))
            fixes.append(f"max_workers of {min(binding.types)}")
            numbers.update({f"max_workers {t}": n for t, n in limits.items()})
        return Reason(Cause.LIMIT, " and ".join(texts), numbers), f"raise {' and '.join(fixes)}"

    def _types_for(self, shape: Shape) -> list[str]:
        return [
            name
            for name, resources in sorted(self._offerings.resources.items())
            if self._can_launch(name)
            and can_hold(resources, shape)
            and self._labels_match(name, shape)
        ]

    def _can_launch(self, name: str) -> bool:
        return self._spec.node_types[name].max_workers > 0

    def _labels_match(self, name: str, shape: Shape) -> bool:
        return any(shape.matches(labels) for labels in self._offerings.label_sets(name))

    def _fits_existing_node(self, shape: Shape) -> bool:
        return any(
            can_hold(self._snapshot.total_of(n), shape)
            and shape.matches(self._snapshot.labels_of(n))
            for n, _ in self._snapshot.serving
        )

    def _infeasible(self, shape: Shape) -> tuple[Reason, str]:
        types = {n: r for n, r in self._offerings.resources.items() if self._can_launch(n)}
        if not types:
            text = "no node type allows workers (max_workers is 0 for all)"
            return Reason(Cause.INFEASIBLE, text), "raise max_workers of a node type"
        lacking = []
        numbers: dict[str, float] = {}
        for name, amount in shape.resources:
            largest = max(r.get(name, 0.0) for r in types.values())
            if largest < amount:
                has = (
                    f"the largest node type has {largest:g}" if largest else "no node type has any"
                )
                lacking.append(f"needs {amount:g} {name} on one node; {has}")
                numbers[f"{name} needed"], numbers[f"{name} largest"] = amount, largest
        if lacking:
            needs = ", ".join(f"{n:g} {name}" for name, n in shape.resources)
            fix = f"add a node type with at least {needs}"
            return Reason(Cause.INFEASIBLE, "; ".join(lacking), numbers), fix
        if any(can_hold(r, shape) for r in types.values()):
            text = "no node type that is large enough has labels that match its selector"
            return Reason(Cause.INFEASIBLE, text), "add these labels to a node type"
        closest, missing = _closest(types, shape)
        text = f"no node type has all of these resources; the closest, {closest}, lacks {missing}"
        return Reason(Cause.INFEASIBLE, text), "add a node type that has all of them"


@dataclass(frozen=True)
class _UnmetRow:
    """Work that a plan leaves unmet: what it is called, its shapes, and what it needs."""

    subject: str
    count: int
    shapes: tuple[Shape, ...]
    needs: UnmetItems
    gang_group: GangGroup | None


def _limit_text(whose: str, allowed: int) -> str:
    if allowed <= 0:
        return f"max_workers of {whose} is reached"
    return f"max_workers of {whose} allows only {allowed} more"


def _shapes_left_out(shapes: int) -> Unmet:
    text = f"at most {MAX_SHAPES:,} shapes are planned at once; these follow later"
    reason = Reason(Cause.LIMIT, text, {"shapes": shapes})
    return Unmet("more shapes", shapes, reason)


def can_hold(resources: Resources, shape: Shape) -> bool:
    """Whether an empty node with these resources is large enough."""
    return all(
        resources.get(name, implicit_amount(name)) >= amount for name, amount in shape.resources
    )


def _closest(types: Mapping[str, Resources], shape: Shape) -> tuple[str, str]:
    """The node type that lacks the fewest resources, and which."""

    def lacks(name: str) -> list[str]:
        return [r for r, amount in shape.resources if types[name].get(r, 0.0) < amount]

    best = min(sorted(types), key=lambda name: len(lacks(name)))
    return best, " and ".join(lacks(best))
