"""Refines the launches that the stages of scale-up selected: drops what is not needed, and in small
cases finds a cheaper set for all of the work together."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.scaling.bin_packing import pack
from shoal.scaling.exact_search import MAX_ITEMS, CoverBounds, cheapest_set
from shoal.scaling.free_capacity import FreeCapacity
from shoal.scaling.instance_mix import MAX_EXACT_INSTANCES
from shoal.scaling.instance_selection import InstanceSelector, Selection, with_selections
from shoal.scaling.launch_stages import LaunchStage, SelectedLaunches, items_of
from shoal.scaling.offerings import InstanceOption
from shoal.scaling.placement import Unplaced, largest_feasible, place, with_fewest_tasks_left
from shoal.scaling.resource_vectors import Item
from shoal.scaling.scaling_plan import Cause

# Up to so many items, and items times groups of nodes, everything is placed again to find what is
# not needed.
MAX_REPEATED_ITEMS = 200
MAX_REPEATED_WORK = 20_000
# How many sets of instances the exact search over all work may try, and how many are tried if the
# limits leave something unmet.
JOINT_STEPS = 1_500
MAX_SETS_TRIED = 120


class LaunchRefinement:
    """Changes the stages of `SelectedLaunches` in place."""

    def __init__(self, launches: SelectedLaunches) -> None:
        self._launches = launches
        self._selector = launches.instance_selector
        self._snapshot = launches.snapshot
        self._space = launches.space
        self._workload = launches.workload

    def drop_surplus(self) -> int:
        """Drop launches that later stages made unnecessary, and return how many. Floors come first
        so that tasks cannot use up their capacity, but nodes launched for tasks and gangs count for
        the floors as well; and a mix found for a part of the work may be more than the whole
        needs."""
        stages = self._launches.work_stages()
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
        before = self._launches.all_unplaced()
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

    def select_together(self) -> None:
        """If gangs and tasks both need instances, one mix for all of them may be cheaper than a mix
        for each."""
        causes = {
            s.reason.cause
            for s in self._launches.work_stages()
            if any(x.count for x in s.selections)
        }
        items = self._launches.all_items()
        if len(causes) < 2 or not self._is_small() or self._selector.has_preferences(items):
            return
        unplaced = self._launches.all_unplaced()
        before, selected = self._launches.take_back_work_launches()
        selector, workload = self._selector, self._workload
        _, work = self._launches.placed_items(unplaced)
        joint = selector.select_all(_lacking(self._launches.free_capacity(), work)) or []
        floors, _ = self._launches.placed_items(unplaced)
        total = with_selections(self._launches.free_capacity(ignore_usage=True), joint)
        joint += selector.select_all(_lacking(total, floors)) or []
        free = with_selections(self._launches.free_capacity(), joint)
        total = with_selections(self._launches.free_capacity(ignore_usage=True), joint)
        if (
            sum(map(selector.price_of, joint)) < sum(map(selector.price_of, selected))
            and place(total, tasks=workload.floors) == unplaced[0]
            and self._launches.place_work(free) == unplaced[1]
        ):
            self._launches.add_by_need(joint)
        else:
            self._launches.undo(joint)
            self._launches.restore(before, selected)

    def search_within_limits(self) -> None:
        """If the limits leave something unmet and allow few sets of instances, try them all: most
        floors met first, then most gangs, then most tasks, then the lowest price."""
        if (
            not (self._launches.unplaced or self._launches.unplaced_floors)
            or not self._is_exact_case()
        ):
            return
        before, selected = self._launches.take_back_work_launches()
        selector = self._selector
        sets = _sets_within(selector, MAX_SETS_TRIED)
        free, total = (
            self._launches.free_capacity(),
            self._launches.free_capacity(ignore_usage=True),
        )
        floors = self._workload.floors

        def rank(selections: Sequence[Selection]) -> tuple[float, ...]:
            floors_left = place(with_selections(total, selections), tasks=floors, fewest_left=True)
            left = self._launches.place_work(with_selections(free, selections), fewest_left=True)
            price = sum(map(selector.price_of, selections))
            return (sum(floors_left.tasks), left.gangs, sum(left.tasks), price)

        best, best_rank = selected, rank(selected)
        for counts in sets:
            selections = [Selection(selector.options[i], n) for i, n in enumerate(counts) if n]
            if (new_rank := rank(selections)) < best_rank:
                best, best_rank = selections, new_rank
        if best is selected:
            self._launches.restore(before, selected)
        else:
            options = selector.options
            self._launches.add_by_need(
                [selector.add(options.index(s.option), s.count) for s in best]
            )
        self._launches.unplaced_floors, self._launches.unplaced = self._launches.all_unplaced()

    def replace_by_cheapest(self) -> None:
        """In small cases, replace the launches for floors, gangs and tasks by the cheapest set of
        instances that meets all of them together, found by exact search."""
        launches = sum(s.count for stage in self._launches.work_stages() for s in stage.selections)
        if not 0 < launches <= MAX_EXACT_INSTANCES or not self._is_exact_case():
            return
        unplaced = self._launches.all_unplaced()
        before, selected = self._launches.take_back_work_launches()
        selector = self._selector
        better = self._cheapest_for_all(sum(map(selector.price_of, selected)), unplaced)
        if better is None:
            self._launches.restore(before, selected)
            return
        self._launches.add_by_need([selector.add(i, n) for i, n in enumerate(better) if n])

    def count_fewest_left(self) -> None:
        """Report as few tasks as unmet as there must be: any placement of the others will do."""
        if not any(self._launches.unplaced.tasks) or not self._is_small():
            return
        free = self._launches.free_capacity()
        fewest = self._launches.place_work(free, fewest_left=True)
        if self._is_exact_case():
            fewest = with_fewest_tasks_left(free, self._workload, fewest)
        before = self._launches.unplaced
        if (fewest.gangs, sum(fewest.tasks)) < (before.gangs, sum(before.tasks)):
            self._launches.unplaced = fewest

    def _drop_surplus_from(
        self, stage: LaunchStage, index: int, unplaced: tuple[Unplaced, Unplaced]
    ) -> int:
        selection = stage.selections[index]

        def is_enough_without(fewer: int) -> bool:
            stage.selections[index] = Selection(selection.option, selection.count - fewer)
            return self._launches.all_unplaced() == unplaced

        surplus = 0
        if is_enough_without(1):
            surplus = 1 + largest_feasible(
                selection.count - 1, lambda fewer: is_enough_without(fewer + 1)
            )
        stage.selections[index] = Selection(selection.option, selection.count - surplus)
        self._selector.remove(selection.option.node_type, surplus)
        return surplus

    def _slack(self, unplaced: tuple[Unplaced, Unplaced]) -> list[list[int]]:
        """The capacity beyond what everything that fits needs, per resource: for floors, and for
        work."""
        floors, work = self._launches.placed_items(unplaced)
        return [
            _slack_of(self._launches.free_capacity(ignore_usage=True), floors),
            _slack_of(self._launches.free_capacity(), work),
        ]

    def _covers(self, slack: Sequence[Sequence[int]], option: InstanceOption) -> bool:
        """Whether the slack is enough to do without one instance."""
        amounts = self._space.vector(option.resources)
        return all(s >= a for x in slack for s, a in zip(x, amounts, strict=True))

    def _cheapest_for_all(
        self, price: float, unplaced: tuple[Unplaced, Unplaced]
    ) -> list[int] | None:
        """The cheapest set that leaves no more unplaced than this."""
        floors, work = self._launches.placed_items(unplaced)
        selector, space = self._selector, self._space
        free, total = (
            self._launches.free_capacity(),
            self._launches.free_capacity(ignore_usage=True),
        )

        def bounds(capacity: FreeCapacity, items: Sequence[Item]) -> CoverBounds:
            bins = [(row.free, row.labels, row.count) for row in capacity.rows]
            return CoverBounds(space, items, bins, selector.bin_types)

        def fits(chosen: tuple[int, ...]) -> bool:
            selections = [Selection(selector.options[i], 1) for i in chosen]
            return (
                place(with_selections(total, selections), tasks=self._workload.floors)
                == unplaced[0]
                and self._launches.place_work(with_selections(free, selections)) == unplaced[1]
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

    def _is_small(self) -> bool:
        """Whether everything can be placed again many times."""
        items = len(self._launches.all_items()) + len(self._workload.floors)
        return (
            items <= MAX_REPEATED_ITEMS and items * len(self._snapshot.serving) <= MAX_REPEATED_WORK
        )

    def _is_exact_case(self) -> bool:
        """Whether only the price decides, and exact search is affordable."""
        items = [*self._launches.all_items(), *items_of(self._workload.floors)]
        return (
            self._is_small()
            and len(items) <= MAX_ITEMS
            and not self._selector.has_preferences(items)
        )


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
