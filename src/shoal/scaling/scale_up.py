"""Scale up: what to launch for minimums, floors, gangs and tasks, in that order.

Each stage is bin packing: place the demand on existing nodes, launching nodes and the instances
selected so far (best-fit decreasing), then select the cheapest mix of instances for what does not
fit. A later plan, made while these instances launch, asks the same packing code whether the demand
fits. So a plan that has been carried out leads to no further launches.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from shoal.scaling.bin_packing import pack
from shoal.scaling.exact_search import MAX_ITEMS, CoverBounds, cheapest_set
from shoal.scaling.free_capacity import FreeCapacity
from shoal.scaling.gangs import select_for_gangs
from shoal.scaling.instance_mix import MAX_EXACT_INSTANCES
from shoal.scaling.instance_selection import (
    ExistingCapacity,
    InstanceSelector,
    Selection,
    add_selection,
    with_selections,
)
from shoal.scaling.offerings import InstanceOption, Offerings
from shoal.scaling.placement import Unplaced, largest_feasible, place, with_fewest_tasks_left
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
from shoal.scaling.target_utilization import LegacyTargets
from shoal.scaling.workload import SingleNodeItem, Workload

# Even the smallest cluster may have this many throttled launches in progress.
MIN_UPSCALING_STEP = 5
# Each round selects instances for what the last one left; more than a few rounds are needed only
# where priorities differ or limits are tight.
MAX_ROUNDS = 40
# Up to so many items, and items times groups of nodes, everything is placed again to find what is
# not needed.
MAX_REPEATED_ITEMS = 200
MAX_REPEATED_WORK = 20_000
# How many sets of instances the exact search over all work may try, and how many are tried if the
# limits leave something unmet.
JOINT_STEPS = 1_500
MAX_SETS_TRIED = 120
# Launches that depend on the work; the others are for targets of their own.
_FOR_WORK = frozenset({Cause.FLOOR, Cause.GANG, Cause.DEMAND})

_NONE = Unplaced((), (), ())


@dataclass
class ScaleUpResult:
    """What to launch and what does not fit even then. `deferred` launches are left for later by
    `upscaling_speed`, which allowed `launch_budget` now; `waiting` ones by
    `max_concurrent_launches`."""

    launches: list[PlannedLaunch] = field(default_factory=list)
    below_minimum: Counter[str] = field(default_factory=Counter)
    unplaced_floors: Unplaced = _NONE
    unplaced: Unplaced = _NONE
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
        self._interrupted = interrupted
        self._space = space
        self._snapshot = snapshot
        self._workload = workload
        self.instance_selector = InstanceSelector(
            space, offerings.options, snapshot.remaining_by_type(), snapshot.remaining_total()
        )
        self._stages: list[_Stage] = []
        self._launched_throttled = 0
        self._result = ScaleUpResult()

    def run(self, legacy_targets: LegacyTargets) -> ScaleUpResult:
        """Run all stages, those that must not be throttled first."""
        self._launch_min_workers()
        self._launch_for_floors()
        self._launch_for_gangs()
        self._top_up(legacy_targets.initial, because_of_initial_workers, throttled=False)
        self._result.launch_budget = self._launch_budget()
        self._launch_for_tasks()
        for _ in range(MAX_ROUNDS):
            if not self._drop_surplus():
                break
            if self._result.unplaced:
                self._launch_for_gangs()
                self._launch_for_tasks()
        self._select_together()
        self._search_within_limits()
        self._replace_by_cheapest()
        self._count_fewest_left()
        self._apply_budget()
        self._top_up(legacy_targets.utilization, because_of_utilization, throttled=True)
        self._limit_concurrent_launches()
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
            self._result.unplaced_floors = place(total_capacity, tasks=floors)
            left = self._result.unplaced_floors.tasks
            selected = self._select_for(
                floors, left, ExistingCapacity(total_capacity, _items(floors))
            )
            if not selected:
                return
            for selection in selected:
                add_selection(total_capacity, selection)
            self._add_stage(selected, because_of_floors(floors, sum(left)), throttled=False)

    def _launch_for_gangs(self) -> None:
        gang_groups = self._workload.gang_groups
        strict_pack_gangs = self._workload.strict_pack_gangs
        if not gang_groups and not strict_pack_gangs:
            return
        free_capacity = self._free_capacity()
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
                self._undo(selected)  # they would not help
                return
            self._add_stage(
                selected,
                because_of_gangs(gang_groups, strict_pack_gangs, unplaced),
                throttled=False,
            )
            unplaced = left

    def _launch_for_tasks(self) -> None:
        workload = self._workload
        if not workload.gang_groups and not workload.strict_pack_gangs and not workload.tasks:
            return  # adding up the capacity of thousands of nodes is most of the cost of a plan
        free_capacity = self._free_capacity()
        selected: list[Selection] = []
        lacking: Sequence[int] = ()
        existing = None
        if not workload.gang_groups:
            work = [*workload.strict_pack_gangs, *workload.tasks]
            existing = ExistingCapacity(free_capacity, _items(work))
        for number in range(MAX_ROUNDS):
            self._result.unplaced = self._place_work(free_capacity)
            left = self._result.unplaced.tasks
            if number == 0:
                lacking = left
            more = self._select_for(workload.tasks, left, existing)
            if not more:
                break
            selected += more
            for selection in more:
                add_selection(free_capacity, selection)
        if selected:
            self._add_stage(selected, self._reason_for_tasks(lacking), throttled=True)

    def _undo(self, selected: Iterable[Selection]) -> None:
        for selection in selected:
            self.instance_selector.remove(selection.option.node_type, selection.count)

    def _place_work(self, free_capacity: FreeCapacity, *, fewest_left: bool = False) -> Unplaced:
        workload = self._workload
        return place(
            free_capacity,
            workload.gang_groups,
            workload.strict_pack_gangs,
            workload.tasks,
            fewest_left=fewest_left,
        )

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

    def _apply_budget(self) -> None:
        """Leave what `upscaling_speed` does not allow now for later."""
        for stage in self._stages:
            if stage.throttled:
                stage.selections = self._within_budget(stage.selections)

    def _limit_concurrent_launches(self) -> None:
        """Leave what `max_concurrent_launches` does not allow now for later, last stage first."""
        limit = self._snapshot.spec.shoal.max_concurrent_launches
        if not limit:
            return
        allowed = max(0, limit - self._snapshot.launching_count)
        for stage in self._stages:
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

    def _free_capacity(self, *, ignore_usage: bool = False) -> FreeCapacity:
        free_capacity = self._snapshot.free_capacity(self._space, ignore_usage=ignore_usage)
        for selection in self.selected:
            add_selection(free_capacity, selection)
        return free_capacity

    def _drop_surplus(self) -> int:
        """Drop launches that later stages made unnecessary, and return how many. Floors come first
        so that tasks cannot use up their capacity, but nodes launched for tasks and gangs count for
        the floors as well; and a mix found for a part of the work may be more than the whole
        needs."""
        stages = self._work_stages()
        if not self._is_small():
            stages = [stage for stage in stages if stage.reason.cause is Cause.FLOOR]
        choices = [
            (stage, index)
            for stage in stages
            for index, selection in enumerate(stage.selections)
            if selection.count
        ]
        choices.sort(key=lambda choice: -choice[0].selections[choice[1]].option.price)
        if not choices:
            return 0
        before = self._all_unplaced()
        slack = self._slack(before)
        dropped = 0
        for stage, index in choices:
            option = stage.selections[index].option
            if not self._covers(slack, option):
                continue
            surplus = self._drop_surplus_from(stage, index, before)
            amounts = self._space.vector(option.resources)
            slack = [[s - surplus * a for s, a in zip(x, amounts, strict=True)] for x in slack]
            dropped += surplus
        return dropped

    def _is_small(self) -> bool:
        """Whether everything can be placed again many times."""
        items = len(self._all_items()) + len(self._workload.floors)
        return (
            items <= MAX_REPEATED_ITEMS and items * len(self._snapshot.serving) <= MAX_REPEATED_WORK
        )

    def _all_items(self) -> list[Item]:
        space, workload = self._space, self._workload
        bundles = [i for g in workload.gang_groups for i in g.bundles_of(space, g.count)]
        return [*bundles, *_items(workload.strict_pack_gangs), *_items(workload.tasks)]

    def _slack(self, unplaced: tuple[Unplaced, Unplaced]) -> list[list[int]]:
        """The capacity beyond what everything that fits needs, per resource: for floors, and for
        work."""
        floors, work = self._placed_items(unplaced)
        return [
            _slack_of(self._free_capacity(ignore_usage=True), floors),
            _slack_of(self._free_capacity(), work),
        ]

    def _placed_items(self, unplaced: tuple[Unplaced, Unplaced]) -> tuple[list[Item], list[Item]]:
        """The floors, and the work, without what is not placed."""
        workload, space = self._workload, self._space
        floors_left, left = unplaced

        def placed(entries: Sequence[SingleNodeItem], counts: Sequence[int]) -> list[Item]:
            pairs = zip(entries, counts, strict=True)
            return [space.resized(entry.item, entry.item.count - n) for entry, n in pairs]

        bundles = [
            item
            for group, n in zip(workload.gang_groups, left.gang_groups, strict=True)
            for item in group.bundles_of(space, group.count - n)
        ]
        strict_pack_gangs = placed(workload.strict_pack_gangs, left.strict_pack_gangs)
        return placed(workload.floors, floors_left.tasks), [
            *bundles,
            *strict_pack_gangs,
            *placed(workload.tasks, left.tasks),
        ]

    def _covers(self, slack: Sequence[Sequence[int]], option: InstanceOption) -> bool:
        """Whether the slack is enough to do without one instance."""
        amounts = self._space.vector(option.resources)
        return all(s >= a for x in slack for s, a in zip(x, amounts, strict=True))

    def _drop_surplus_from(
        self, stage: _Stage, index: int, unplaced: tuple[Unplaced, Unplaced]
    ) -> int:
        selection = stage.selections[index]

        def is_enough_without(fewer: int) -> bool:
            stage.selections[index] = Selection(selection.option, selection.count - fewer)
            return self._all_unplaced() == unplaced

        surplus = 0
        if is_enough_without(1):
            surplus = 1 + largest_feasible(
                selection.count - 1, lambda fewer: is_enough_without(fewer + 1)
            )
        stage.selections[index] = Selection(selection.option, selection.count - surplus)
        self.instance_selector.remove(selection.option.node_type, surplus)
        return surplus

    def _all_unplaced(self) -> tuple[Unplaced, Unplaced]:
        """What does not fit with everything selected so far: floors, and work."""
        return (
            place(self._free_capacity(ignore_usage=True), tasks=self._workload.floors),
            self._place_work(self._free_capacity()),
        )

    def _count_fewest_left(self) -> None:
        """Report as few tasks as unmet as there must be: any placement of the others will do."""
        if not any(self._result.unplaced.tasks) or not self._is_small():
            return
        free = self._free_capacity()
        fewest = self._place_work(free, fewest_left=True)
        if self._is_exact_case():
            fewest = with_fewest_tasks_left(free, self._workload, fewest)
        before = self._result.unplaced
        if (fewest.gangs, sum(fewest.tasks)) < (before.gangs, sum(before.tasks)):
            self._result.unplaced = fewest

    def _select_together(self) -> None:
        """If gangs and tasks both need instances, one mix for all of them may be cheaper than a mix
        for each."""
        causes = {s.reason.cause for s in self._work_stages() if any(x.count for x in s.selections)}
        items = self._all_items()
        if len(causes) < 2 or not self._is_small() or self.instance_selector.has_preferences(items):
            return
        unplaced = self._all_unplaced()
        before, selected = self._without_launches_for_work()
        selector, workload = self.instance_selector, self._workload
        _, work = self._placed_items(unplaced)
        joint = selector.select_all(_lacking(self._free_capacity(), work)) or []
        floors, _ = self._placed_items(unplaced)
        total = with_selections(self._free_capacity(ignore_usage=True), joint)
        joint += selector.select_all(_lacking(total, floors)) or []
        free = with_selections(self._free_capacity(), joint)
        total = with_selections(self._free_capacity(ignore_usage=True), joint)
        if (
            sum(map(selector.price_of, joint)) < sum(map(selector.price_of, selected))
            and place(total, tasks=workload.floors) == unplaced[0]
            and self._place_work(free) == unplaced[1]
        ):
            self._add_by_need(joint)
        else:
            self._undo(joint)
            self._restore(before, selected)

    def _search_within_limits(self) -> None:
        """If the limits leave something unmet and allow few sets of instances, try them all: most
        floors met first, then most gangs, then most tasks, then the lowest price."""
        if not (self._result.unplaced or self._result.unplaced_floors) or not self._is_exact_case():
            return
        before, selected = self._without_launches_for_work()
        selector = self.instance_selector
        sets = _sets_within(selector, MAX_SETS_TRIED)
        free, total = self._free_capacity(), self._free_capacity(ignore_usage=True)
        floors = self._workload.floors

        def rank(selections: Sequence[Selection]) -> tuple[float, ...]:
            floors_left = place(with_selections(total, selections), tasks=floors, fewest_left=True)
            left = self._place_work(with_selections(free, selections), fewest_left=True)
            price = sum(map(selector.price_of, selections))
            return (sum(floors_left.tasks), left.gangs, sum(left.tasks), price)

        best, best_rank = selected, rank(selected)
        for counts in sets:
            selections = [Selection(selector.options[i], n) for i, n in enumerate(counts) if n]
            if (new_rank := rank(selections)) < best_rank:
                best, best_rank = selections, new_rank
        if best is selected:
            self._restore(before, selected)
        else:
            options = selector.options
            self._add_by_need([selector.add(options.index(s.option), s.count) for s in best])
        self._result.unplaced_floors, self._result.unplaced = self._all_unplaced()

    def _replace_by_cheapest(self) -> None:
        """In small cases, replace the launches for floors, gangs and tasks by the cheapest set of
        instances that meets all of them together, found by exact search."""
        launches = sum(s.count for stage in self._work_stages() for s in stage.selections)
        if not 0 < launches <= MAX_EXACT_INSTANCES or not self._is_exact_case():
            return
        unplaced = self._all_unplaced()
        before, selected = self._without_launches_for_work()
        selector = self.instance_selector
        better = self._cheapest_for_all(sum(map(selector.price_of, selected)), unplaced)
        if better is None:
            self._restore(before, selected)
            return
        self._add_by_need([selector.add(i, n) for i, n in enumerate(better) if n])

    def _is_exact_case(self) -> bool:
        """Whether only the price decides, and exact search is affordable."""
        items = [*self._all_items(), *_items(self._workload.floors)]
        return (
            self._is_small()
            and len(items) <= MAX_ITEMS
            and not self.instance_selector.has_preferences(items)
        )

    def _work_stages(self) -> list[_Stage]:
        return [stage for stage in self._stages if stage.reason.cause in _FOR_WORK]

    def _without_launches_for_work(self) -> tuple[list[_Stage], list[Selection]]:
        """Take back the launches for floors, gangs and tasks. Returns all stages as they were, and
        these launches."""
        before, stages = self._stages, self._work_stages()
        selected = [s for stage in stages for s in stage.selections if s.count]
        self._stages = [stage for stage in before if stage not in stages]
        self._undo(selected)
        return before, selected

    def _restore(self, stages: list[_Stage], selected: Iterable[Selection]) -> None:
        self._stages = stages
        for selection in selected:
            option = self.instance_selector.options.index(selection.option)
            self.instance_selector.add(option, selection.count)

    def _cheapest_for_all(
        self, price: float, unplaced: tuple[Unplaced, Unplaced]
    ) -> list[int] | None:
        """The cheapest set that leaves no more unplaced than this."""
        floors, work = self._placed_items(unplaced)
        selector, space = self.instance_selector, self._space
        free, total = self._free_capacity(), self._free_capacity(ignore_usage=True)

        def bounds(capacity: FreeCapacity, items: Sequence[Item]) -> CoverBounds:
            bins = [(row.free, row.labels, row.count) for row in capacity.rows]
            return CoverBounds(space, items, bins, selector.bin_types)

        def fits(chosen: tuple[int, ...]) -> bool:
            selections = [Selection(selector.options[i], 1) for i in chosen]
            return (
                place(with_selections(total, selections), tasks=self._workload.floors)
                == unplaced[0]
                and self._place_work(with_selections(free, selections)) == unplaced[1]
            )

        limits, total_limit = selector.limits()
        return cheapest_set(
            selector.bin_types,
            limits,
            total_limit,
            price,
            [bounds(free, work), bounds(total, floors)],
            fits,
            steps=JOINT_STEPS,
        )

    def _add_by_need(self, selections: Sequence[Selection]) -> None:
        """Add launches as stages: what floors need of them, what gangs need, and the rest, which
        tasks need."""
        workload = self._workload
        total, free = self._free_capacity(ignore_usage=True), self._free_capacity()
        lacking = place(total, tasks=workload.floors)
        floors_left = place(with_selections(total, selections), tasks=workload.floors)

        def floors_fit(chosen: Sequence[Selection]) -> bool:
            return place(with_selections(total, chosen), tasks=workload.floors) == floors_left

        for_floors, rest = _split(selections, floors_fit)
        if for_floors:
            reason = because_of_floors(workload.floors, sum(lacking.tasks))
            self._add_stage(for_floors, reason, throttled=False)
        free = with_selections(free, for_floors)
        gangs = workload.gang_groups, workload.strict_pack_gangs
        lacking = place(free, *gangs)
        gangs_left = place(with_selections(free, rest), *gangs)

        def gangs_fit(chosen: Sequence[Selection]) -> bool:
            return place(with_selections(free, chosen), *gangs) == gangs_left

        for_gangs, rest = _split(rest, gangs_fit)
        if for_gangs:
            self._add_stage(for_gangs, because_of_gangs(*gangs, lacking), throttled=False)
        if rest:
            lacking = self._place_work(with_selections(free, for_gangs))
            self._add_stage(rest, self._reason_for_tasks(lacking.tasks), throttled=True)

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


def _slack_of(capacity: FreeCapacity, items: Sequence[Item]) -> list[int]:
    rows = capacity.rows
    return [
        sum(row.free[axis] * row.count for row in rows)
        - sum(i.amounts[axis] * i.count for i in items)
        for axis in range(len(capacity.space.names))
    ]


def _lacking(capacity: FreeCapacity, items: Sequence[Item]) -> list[Item]:
    left = pack(capacity, items)
    return [capacity.space.resized(i, n) for i, n in zip(items, left, strict=True) if n]


def _sets_within(selector: InstanceSelector, most: int) -> list[tuple[int, ...]]:
    """Every set of instances that the limits allow, as counts per option; none if there are more
    than `most`."""
    limits, total = selector.limits()
    sets: list[tuple[tuple[int, ...], dict[int, int], int]] = [((), {}, 0)]
    for bin_type in selector.bin_types:
        extended = []
        for counts, by_group, used in sets:
            in_group = by_group.get(bin_type.group, 0)
            for n in range(min(limits[bin_type.group] - in_group, total - used) + 1):
                groups = {**by_group, bin_type.group: in_group + n}
                extended.append(((*counts, n), groups, used + n))
            if len(extended) > most:
                return []
        sets = extended
    return [counts for counts, _, _ in sets]


def _split(
    selections: Sequence[Selection], fits: Callable[[Sequence[Selection]], bool]
) -> tuple[list[Selection], list[Selection]]:
    """The selections that are needed to fit, the dearest left out first, and the others."""
    needed, rest = list(selections), []
    for index in sorted(range(len(needed)), key=lambda i: -needed[i].option.price):
        option, count = needed[index].option, needed[index].count

        def fits_without(fewer: int, index: int = index, count: int = count) -> bool:
            changed = [*needed]
            changed[index] = Selection(needed[index].option, count - fewer)
            return fits(changed)

        spare = largest_feasible(count, fits_without)
        needed[index] = Selection(option, count - spare)
        if spare:
            rest.append(Selection(option, spare))
    return [s for s in needed if s.count], rest
