"""Scale up: what to launch for minimums, floors, gangs and tasks, in that order.

Each stage is bin packing: place the demand on existing nodes, launching nodes and the instances
selected so far (best-fit decreasing), then select the cheapest mix of instances for what does not
fit. A later plan, made while these instances launch, asks the same packing code whether the demand
fits. So a plan that has been carried out leads to no further launches.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from shoal.scaling.free_capacity import FreeCapacity
from shoal.scaling.gangs import select_for_gangs
from shoal.scaling.instance_selection import (
    ExistingCapacity,
    InstanceSelector,
    Selection,
    add_selection,
)
from shoal.scaling.legacy_targets import LegacyTargets
from shoal.scaling.offerings import InstanceOption, Offerings
from shoal.scaling.placement import Unplaced, largest_feasible, place
from shoal.scaling.reasons import (
    because_of_demand,
    because_of_floors,
    because_of_gangs,
    because_of_initial_workers,
    because_of_minimum,
    because_of_utilization,
)
from shoal.scaling.resource_vectors import Item, ResourceSpace
from shoal.scaling.scaling_plan import Cause, PlannedLaunch, Reason
from shoal.scaling.snapshot import ClusterSnapshot
from shoal.scaling.workload import SingleNodeItem, Workload

# Even the smallest cluster may have this many throttled launches in progress.
MIN_UPSCALING_STEP = 5
# Each round selects instances for what the last one left; more than a few rounds are needed only
# where priorities differ or limits are tight.
MAX_ROUNDS = 40

_NONE = Unplaced((), ())


@dataclass
class ScaleUpResult:
    """What to launch and what does not fit even then. `deferred` launches are left for later by
    `upscaling_speed`, which allowed `launch_budget` now."""

    launches: list[PlannedLaunch] = field(default_factory=list)
    below_minimum: Counter[str] = field(default_factory=Counter)
    unplaced_floors: Unplaced = _NONE
    unplaced: Unplaced = _NONE
    deferred: int = 0
    launch_budget: float = 0.0


class ScaleUp:
    """One run through the stages. `interrupted` of the requests replace the work of interrupted
    nodes; their replacements are not growth and do not count against `upscaling_speed`."""

    def __init__(
        self,
        space: ResourceSpace,
        snapshot: ClusterSnapshot,
        offerings: Offerings,
        workload: Workload,
        *,
        interrupted: int = 0,
    ) -> None:
        self._interrupted = interrupted
        self._space = space
        self._snapshot = snapshot
        self._workload = workload
        self.instance_selector = InstanceSelector(
            space, offerings.options, snapshot.remaining_by_type(), snapshot.remaining_total()
        )
        self._stages: list[_Stage] = []
        self._result = ScaleUpResult()

    def run(self, legacy_targets: LegacyTargets) -> ScaleUpResult:
        """Run all stages, those that must not be throttled first."""
        self._launch_min_workers()
        self._launch_for_floors()
        self._launch_for_gangs()
        self._top_up(legacy_targets.initial, because_of_initial_workers, throttled=False)
        self._result.launch_budget = self._launch_budget()
        self._launch_for_tasks()
        self._top_up(legacy_targets.utilization, because_of_utilization, throttled=True)
        while self._drop_surplus() and not self._result.deferred:
            self._launch_for_tasks()
        self._result.launches = [launch for stage in self._stages for launch in stage.launches()]
        return self._result

    def _launch_min_workers(self) -> None:
        for name, node_type in sorted(self._snapshot.spec.node_types.items()):
            current = self._snapshot.serving_by_type[name]
            lacking = node_type.min_workers - current
            if lacking <= 0:
                continue
            index = self._cheapest({name})
            allowed = min(
                lacking,
                self.instance_selector.remaining_by_type[name],
                self.instance_selector.remaining,
            )
            if index is not None and allowed > 0:
                selection = self.instance_selector.add(index, allowed)
                reason = because_of_minimum(name, node_type.min_workers, current)
                self._add_stage([selection], reason, throttled=False)
                lacking -= allowed
            if lacking:
                self._result.below_minimum[name] = lacking

    def _launch_for_floors(self) -> None:
        floors = self._workload.floors
        if not floors:
            return
        total_capacity = self._free_capacity(ignore_usage=True)
        for _ in range(MAX_ROUNDS):
            self._result.unplaced_floors = unplaced = place(total_capacity, (), floors)
            selected = self._select_for(
                floors, unplaced.single_items, ExistingCapacity(total_capacity, _items(floors))
            )
            if not selected:
                return
            for selection in selected:
                add_selection(total_capacity, selection)
            lacking = sum(unplaced.single_items)
            self._add_stage(selected, because_of_floors(floors, lacking), throttled=False)

    def _launch_for_gangs(self) -> None:
        gang_groups = self._workload.gang_groups
        strict_pack_gangs = self._workload.strict_pack_gangs
        if not gang_groups and not strict_pack_gangs:
            return
        free_capacity = self._free_capacity()
        for _ in range(MAX_ROUNDS):
            unplaced = place(free_capacity, gang_groups, strict_pack_gangs)
            selected = select_for_gangs(
                self.instance_selector, free_capacity, gang_groups, strict_pack_gangs, unplaced
            )
            if not selected:
                return
            for selection in selected:
                add_selection(free_capacity, selection)
            self._add_stage(
                selected,
                because_of_gangs(gang_groups, strict_pack_gangs, unplaced),
                throttled=False,
            )

    def _launch_for_tasks(self) -> None:
        gang_groups = self._workload.gang_groups
        single_items = [*self._workload.strict_pack_gangs, *self._workload.tasks]
        first_task = len(self._workload.strict_pack_gangs)
        if not gang_groups and not single_items:
            return  # adding up the capacity of thousands of nodes is most of the cost of a plan
        free_capacity = self._free_capacity()
        selected: list[Selection] = []
        lacking: Sequence[int] = ()
        for number in range(MAX_ROUNDS):
            self._result.unplaced = unplaced = place(free_capacity, gang_groups, single_items)
            left = unplaced.single_items[first_task:]
            if number == 0:
                lacking = left
            existing = (
                None if gang_groups else ExistingCapacity(free_capacity, _items(single_items))
            )
            more = self._select_for(self._workload.tasks, left, existing)
            if not more:
                break
            selected += more
            for selection in more:
                add_selection(free_capacity, selection)
        allowed = self._within_budget(selected)
        if allowed:
            self._add_stage(allowed, self._reason_for_tasks(lacking), throttled=True)

    def _reason_for_tasks(self, lacking: Sequence[int]) -> Reason:
        """Names the tasks that some node type can hold; the others are listed as unmet."""
        pairs = zip(self._workload.tasks, lacking, strict=True)
        placeable = [
            (task, n) for task, n in pairs if self.instance_selector.options_for(task.item)
        ]
        total_lacking = sum(n for _, n in placeable)
        return because_of_demand([task for task, _ in placeable], total_lacking, self._interrupted)

    def _top_up(
        self, workers: int, reason: Callable[[int, int], Reason], *, throttled: bool
    ) -> None:
        """Launch workers of any type until there are this many."""
        current = sum(self._snapshot.serving_by_type.values()) + sum(s.count for s in self.selected)
        selected: list[Selection] = []
        for _ in self._snapshot.spec.node_types:
            lacking = min(
                workers - current - sum(s.count for s in selected), self.instance_selector.remaining
            )
            index = self._cheapest(
                {name for name, n in self.instance_selector.remaining_by_type.items() if n > 0}
            )
            if lacking <= 0 or index is None:
                break
            node_type = self.instance_selector.options[index].node_type
            allowed = self.instance_selector.remaining_by_type[node_type]
            selected.append(self.instance_selector.add(index, min(lacking, allowed)))
        launched = self._within_budget(selected) if throttled else selected
        self._add_stage(launched, reason(workers, current), throttled=throttled)

    def _cheapest(self, types: set[str]) -> int | None:
        """The option to use when any worker of these types will do; not the head's type if there is
        another."""
        head = self._snapshot.spec.head_node_type

        def preference(index: int) -> tuple[float, bool, float, int]:
            option = self.instance_selector.options[index]
            return (-option.priority, option.node_type == head, option.price, index)

        candidates = [
            i
            for i, option in enumerate(self.instance_selector.options)
            if option.node_type in types
        ]
        return min(candidates, key=preference, default=None)

    def _launch_budget(self) -> float:
        """How many throttled launches may be added to those in progress."""
        scaling = self._snapshot.spec.scaling
        if scaling.autoscaling_mode == "aggressive":
            return math.inf
        allowed = max(
            MIN_UPSCALING_STEP, math.ceil(scaling.upscaling_speed * self._snapshot.ready_count)
        )
        return max(0, allowed + self._interrupted - self._snapshot.throttled_count)

    def _within_budget(self, selected: Sequence[Selection]) -> list[Selection]:
        """As many instances as may be launched now, in the proportions of the whole mix."""
        total = sum(s.count for s in selected)
        used = sum(s.count for stage in self._stages if stage.throttled for s in stage.selections)
        allowed = int(min(total, max(0, self._result.launch_budget - used)))
        self._result.deferred += total - allowed
        if allowed == total:
            return list(selected)
        counts = [s.count * allowed // total for s in selected]
        by_remainder = sorted(
            range(len(selected)), key=lambda i: (-(selected[i].count * allowed % total), i)
        )
        for index in by_remainder[: allowed - sum(counts)]:
            counts[index] += 1
        return [Selection(s.option, n) for s, n in zip(selected, counts, strict=True) if n]

    def _select_for(
        self,
        single_items: Sequence[SingleNodeItem],
        left: Sequence[int],
        existing: ExistingCapacity | None,
    ) -> list[Selection]:
        return (
            self.instance_selector.select(self._resized(single_items, left), existing)
            if any(left)
            else []
        )

    def _resized(self, single_items: Sequence[SingleNodeItem], left: Sequence[int]) -> list[Item]:
        pairs = zip(single_items, left, strict=True)
        return [self._space.resized(entry.item, n) for entry, n in pairs if n]

    def _free_capacity(self, *, ignore_usage: bool = False) -> FreeCapacity:
        free_capacity = self._snapshot.free_capacity(self._space, ignore_usage=ignore_usage)
        for selection in self.selected:
            add_selection(free_capacity, selection)
        return free_capacity

    def _drop_surplus(self) -> int:
        """Drop launches for floors that later stages made unnecessary, and return how many. Floors
        come first so that tasks cannot use up their capacity, but nodes launched for tasks and
        gangs count for the floors as well."""
        return sum(
            self._drop_surplus_from(stage, index)
            for stage in self._stages
            if stage.reason.cause is Cause.FLOOR
            for index in range(len(stage.selections))
        )

    def _drop_surplus_from(self, stage: _Stage, index: int) -> int:
        unplaced = self._all_unplaced()
        selection = stage.selections[index]

        def is_enough_without(fewer: int) -> bool:
            stage.selections[index] = Selection(selection.option, selection.count - fewer)
            return self._all_unplaced() == unplaced

        surplus = largest_feasible(selection.count, is_enough_without)
        stage.selections[index] = Selection(selection.option, selection.count - surplus)
        self.instance_selector.remove(selection.option.node_type, surplus)
        return surplus

    def _all_unplaced(self) -> tuple[Unplaced, Unplaced]:
        """What does not fit with everything selected so far: floors, and work."""
        single_items = [*self._workload.strict_pack_gangs, *self._workload.tasks]
        return (
            place(self._free_capacity(ignore_usage=True), (), self._workload.floors),
            place(self._free_capacity(), self._workload.gang_groups, single_items),
        )

    @property
    def selected(self) -> list[Selection]:
        """All instances selected so far."""
        return [selection for stage in self._stages for selection in stage.selections]

    def _add_stage(
        self, selections: Sequence[Selection], reason: Reason, *, throttled: bool
    ) -> None:
        self._stages.append(_Stage(list(selections), reason, throttled))


@dataclass
class _Stage:
    """The instances selected in one stage, with the reason."""

    selections: list[Selection]
    reason: Reason
    throttled: bool

    def launches(self) -> list[PlannedLaunch]:
        """One launch per node type, market and zone."""
        counts: Counter[tuple[str, str, str]] = Counter()
        options: dict[tuple[str, str, str], InstanceOption] = {}
        for selection in self.selections:
            option = selection.option
            key: tuple[str, str, str] = (option.node_type, option.market, option.zone)
            options[key] = option
            counts[key] += selection.count
        return [
            PlannedLaunch(
                node_type=option.node_type,
                count=counts[key],
                reason=self.reason,
                market=option.market,
                zone=option.zone,
                price_per_hour=option.price if option.is_price_known else None,
                throttled=self.throttled,
            )
            for key, option in sorted(options.items())
            if counts[key]
        ]


def _items(single_items: Sequence[SingleNodeItem]) -> list[Item]:
    return [entry.item for entry in single_items]
