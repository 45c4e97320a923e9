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

from shoal.scaling.gangs import select_for_gangs
from shoal.scaling.instance_selection import (
    ExistingCapacity,
    InstanceSelector,
    Selection,
    add_selection,
)
from shoal.scaling.launch_refinement import LaunchRefinement
from shoal.scaling.launch_stages import NONE_UNPLACED, SelectedLaunches, items_of
from shoal.scaling.offerings import Offerings
from shoal.scaling.placement import Unplaced, place
from shoal.scaling.reasons import (
    because_of_floors,
    because_of_gangs,
    because_of_initial_workers,
    because_of_minimum,
    because_of_utilization,
)
from shoal.scaling.resource_vectors import Item, ResourceSpace
from shoal.scaling.scaling_plan import PlannedLaunch, Reason
from shoal.scaling.snapshot import ClusterSnapshot
from shoal.scaling.target_utilization import LegacyTargets
from shoal.scaling.workload import SingleNodeItem, Workload

# Even the smallest cluster may have this many throttled launches in progress.
MIN_UPSCALING_STEP = 5
# Each round selects instances for what the last one left; more than a few rounds are needed only
# where priorities differ or limits are tight.
MAX_ROUNDS = 40
# What is dropped may be launched again by a later stage, and so on.
MAX_DROP_ROUNDS = 3


@dataclass
class ScaleUpResult:
    """What to launch and what does not fit even then. `deferred` launches are left for later by
    `upscaling_speed`, which allowed `launch_budget` now; `waiting` ones by
    `max_concurrent_launches`."""

    launches: list[PlannedLaunch] = field(default_factory=list)
    below_minimum: Counter[str] = field(default_factory=Counter)
    unplaced_floors: Unplaced = NONE_UNPLACED
    unplaced: Unplaced = NONE_UNPLACED
    deferred: int = 0
    launch_budget: float = 0.0
    waiting: int = 0


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
        self._space = space
        self._snapshot = snapshot
        self._workload = workload
        self._interrupted = interrupted
        self.instance_selector = InstanceSelector(
            space, offerings.options, snapshot.remaining_by_type(), snapshot.remaining_total()
        )
        self._launches = SelectedLaunches(
            space, snapshot, workload, self.instance_selector, interrupted
        )
        self._launched_throttled = 0
        self._result = ScaleUpResult()

    @property
    def selected(self) -> list[Selection]:
        """All instances selected so far."""
        return self._launches.selected

    def run(self, legacy_targets: LegacyTargets) -> ScaleUpResult:
        """Run all stages, those that must not be throttled first."""
        self._launch_min_workers()
        self._launch_for_floors()
        self._launch_for_gangs()
        self._top_up(legacy_targets.initial, because_of_initial_workers, throttled=False)
        self._result.launch_budget = self._launch_budget()
        self._launch_for_tasks()
        refinement = LaunchRefinement(self._launches)
        for _ in range(MAX_DROP_ROUNDS):
            if not refinement.drop_surplus():
                break
            if self._launches.unplaced:
                self._launch_for_gangs()
                self._launch_for_tasks()
        refinement.select_together()
        refinement.search()
        refinement.count_fewest_left()
        # The launches for work, which count towards this target, have changed.
        for _ in range(MAX_DROP_ROUNDS):
            # While work is unmet, all that it does not need must leave it the space below the
            # limits. The target is topped up afterwards.
            kept = 0 if self._launches.unplaced else legacy_targets.initial
            surplus = self._workers() - kept
            if not refinement.drop_initial_surplus(surplus) or not self._launches.unplaced:
                break
            # What was dropped leaves space below the limits.
            self._launch_for_gangs()
            self._launch_for_tasks()
            refinement.search()
            refinement.count_fewest_left()
        self._top_up(legacy_targets.initial, because_of_initial_workers, throttled=False)
        self._apply_budget()
        self._top_up(legacy_targets.utilization, because_of_utilization, throttled=True)
        self._limit_concurrent_launches()
        self._result.unplaced_floors = self._launches.unplaced_floors
        self._result.unplaced = self._launches.unplaced
        self._result.launches = [
            launch for stage in self._launches.stages for launch in stage.launches()
        ]
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
                self._launches.add([selection], reason, throttled=False)
                lacking -= allowed
            if lacking:
                self._result.below_minimum[name] = lacking

    def _launch_for_floors(self) -> None:
        floors = self._workload.floors
        if not floors:
            return
        total_capacity = self._launches.free_capacity(ignore_usage=True)
        for _ in range(MAX_ROUNDS):
            self._launches.unplaced_floors = place(total_capacity, tasks=floors)
            left = self._launches.unplaced_floors.tasks
            selected = self._select_for(
                floors, left, ExistingCapacity(total_capacity, items_of(floors))
            )
            if not selected:
                return
            for selection in selected:
                add_selection(total_capacity, selection)
            self._launches.add(selected, because_of_floors(floors, sum(left)), throttled=False)

    def _launch_for_gangs(self) -> None:
        gang_groups = self._workload.gang_groups
        strict_pack_gangs = self._workload.strict_pack_gangs
        if not gang_groups and not strict_pack_gangs:
            return
        free_capacity = self._launches.free_capacity()
        unplaced = place(free_capacity, gang_groups, strict_pack_gangs)
        for _ in range(MAX_ROUNDS):
            if not unplaced:
                return
            selected = select_for_gangs(
                self.instance_selector, free_capacity, gang_groups, strict_pack_gangs
            )
            if not selected:
                return
            for selection in selected:
                add_selection(free_capacity, selection)
            left = place(free_capacity, gang_groups, strict_pack_gangs)
            if left.gangs >= unplaced.gangs:
                self._launches.undo(selected)  # they would not help
                return
            self._launches.add(
                selected,
                because_of_gangs(gang_groups, strict_pack_gangs, unplaced),
                throttled=False,
            )
            unplaced = left

    def _launch_for_tasks(self) -> None:
        workload = self._workload
        if not workload.gang_groups and not workload.strict_pack_gangs and not workload.tasks:
            return  # adding up the capacity of thousands of nodes is most of the cost of a plan
        free_capacity = self._launches.free_capacity()
        selected: list[Selection] = []
        lacking: Sequence[int] = ()
        existing = None
        if not workload.gang_groups:
            work = [*workload.strict_pack_gangs, *workload.tasks]
            existing = ExistingCapacity(free_capacity, items_of(work))
        for number in range(MAX_ROUNDS):
            self._launches.unplaced = self._launches.place_work(free_capacity)
            left = self._launches.unplaced.tasks
            if number == 0:
                lacking = left
            more = self._select_for(workload.tasks, left, existing)
            if not more:
                break
            selected += more
            for selection in more:
                add_selection(free_capacity, selection)
        if selected:
            self._launches.add(selected, self._launches.reason_for_tasks(lacking), throttled=True)

    def _top_up(
        self, workers: int, reason: Callable[[int, int], Reason], *, throttled: bool
    ) -> None:
        """Launch workers of any type until there are this many."""
        current = self._workers()
        selected: list[Selection] = []
        for _ in self._snapshot.spec.node_types:
            lacking = min(
                workers - current - sum(s.count for s in selected),
                self.instance_selector.remaining,
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
        self._launches.add(launched, reason(workers, current), throttled=throttled)

    def _workers(self) -> int:
        """The workers that exist or are selected."""
        return sum(self._snapshot.serving_by_type.values()) + sum(
            s.count for s in self._launches.selected
        )

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
            MIN_UPSCALING_STEP,
            math.ceil(scaling.upscaling_speed * self._snapshot.ready_count),
        )
        return max(0, allowed + self._interrupted - self._snapshot.throttled_count)

    def _apply_budget(self) -> None:
        """Leave what `upscaling_speed` does not allow now for later."""
        for stage in self._launches.stages:
            if stage.throttled:
                stage.selections = self._within_budget(stage.selections)

    def _limit_concurrent_launches(self) -> None:
        """Leave what `max_concurrent_launches` does not allow now for later, last stage first."""
        limit = self._snapshot.spec.shoal.max_concurrent_launches
        if not limit:
            return
        allowed = max(0, limit - self._snapshot.launching_count)
        for stage in self._launches.stages:
            kept = []
            for selection in stage.selections:
                n = min(selection.count, allowed)
                allowed -= n
                self._result.waiting += selection.count - n
                kept.append(Selection(selection.option, n))
            stage.selections = kept

    def _within_budget(self, selected: Sequence[Selection]) -> list[Selection]:
        """As many instances as may be launched now, in proportion to what each option costs in the
        whole mix: large instances bring most of the capacity, and each kind of work its share."""
        total = sum(s.count for s in selected)
        allowed = int(min(total, max(0, self._result.launch_budget - self._launched_throttled)))
        self._launched_throttled += allowed
        self._result.deferred += total - allowed
        if allowed == total:
            return list(selected)
        counts = [0] * len(selected)
        for _ in range(allowed):
            # The option that is furthest behind its share (highest averages).
            index = max(
                (i for i, s in enumerate(selected) if counts[i] < s.count),
                key=lambda i: (selected[i].count * selected[i].option.price / (counts[i] + 1), -i),
            )
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
