"""Refines the launches that the stages of scale-up selected: drops what is not needed, and in small
cases finds a cheaper set for all of the work together."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.scaling.bin_packing import pack
from shoal.scaling.exact_search import MAX_ITEMS
from shoal.scaling.free_capacity import FreeCapacity
from shoal.scaling.instance_selection import Selection, with_selections
from shoal.scaling.launch_search import LaunchSearch
from shoal.scaling.launch_stages import LaunchStage, SelectedLaunches, items_of
from shoal.scaling.offerings import InstanceOption
from shoal.scaling.placement import Unplaced, largest_feasible, place, with_fewest_tasks_left
from shoal.scaling.resource_vectors import Item
from shoal.scaling.scaling_plan import Cause

# Up to so many items, and items times groups of nodes, everything is placed again to find what is
# not needed.
MAX_REPEATED_ITEMS = 200
MAX_REPEATED_WORK = 20_000
# Up to so many launches, and items times groups of nodes, a better set is searched for.
MAX_SEARCHED_INSTANCES = 64
MAX_SEARCHED_WORK = 2_000


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

    def search(self) -> None:
        """In small cases, look for a better set of launches for floors, gangs and tasks together:
        most floors met first, then most gangs, then most tasks, then the lowest price. Where
        priorities or the order of label selectors decide, only for one that meets more."""
        launches = self._launches
        selected_count = sum(s.count for stage in launches.work_stages() for s in stage.selections)
        is_unmet = bool(launches.unplaced or launches.unplaced_floors)
        has_preferences = self._selector.has_preferences(self._all_items())
        if (
            not (is_unmet or selected_count)
            or selected_count > MAX_SEARCHED_INSTANCES
            or not self._is_searchable()
        ):
            return
        # The search places quickly, because it does so for many sets: what is known to fit with the
        # selected one must not be lost.
        known = launches.all_unplaced()
        before, selected = launches.take_back_work_launches()
        search = LaunchSearch(launches)
        current = search.counts(selected)
        search.add_placement(current, *known)
        best = search.best(current) if is_unmet or not has_preferences else current
        if has_preferences and not search.meets_more(best, current):
            best = search.without_unneeded(current)
        if best == current:
            launches.restore(before, selected)
        else:
            launches.add_by_need([self._selector.add(i, n) for i, n in enumerate(best) if n])
        launches.unplaced_floors, launches.unplaced = search.unplaced(best)

    def count_fewest_left(self) -> None:
        """Report as few tasks as unmet as there must be: any placement of the others will do."""
        if not any(self._launches.unplaced.tasks) or not self._is_small():
            return
        free = self._launches.free_capacity()
        fewest = self._launches.place_work(free, fewest_left=True)
        if self._is_searchable():
            fewest = with_fewest_tasks_left(free, self._workload, fewest)
        before = self._launches.unplaced
        if (fewest.gangs, sum(fewest.tasks)) < (before.gangs, sum(before.tasks)):
            self._launches.unplaced = fewest

    def drop_initial_surplus(self, spare: int) -> int:
        """Drop up to so many launches for `initial_workers` that no work needs, and return how
        many: launches for work count towards that target, too."""
        stages = [s for s in self._launches.stages if s.reason.cause is Cause.INITIAL_WORKERS]
        if spare <= 0 or not any(s.selections for s in stages) or not self._is_small():
            return 0
        before = self._launches.all_unplaced()
        dropped = 0
        for stage in stages:
            for index in range(len(stage.selections)):
                dropped += self._drop_surplus_from(stage, index, before, spare - dropped)
        return dropped

    def _drop_surplus_from(
        self,
        stage: LaunchStage,
        index: int,
        unplaced: tuple[Unplaced, Unplaced],
        most: int | None = None,
    ) -> int:
        selection = stage.selections[index]
        most = selection.count if most is None else min(most, selection.count)

        def is_enough_without(fewer: int) -> bool:
            stage.selections[index] = Selection(selection.option, selection.count - fewer)
            return self._launches.all_unplaced() == unplaced

        surplus = 0
        if most and is_enough_without(1):
            surplus = 1 + largest_feasible(most - 1, lambda fewer: is_enough_without(fewer + 1))
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

    def _is_small(self) -> bool:
        """Whether everything can be placed again many times."""
        items = len(self._launches.all_items()) + len(self._workload.floors)
        return (
            items <= MAX_REPEATED_ITEMS and items * len(self._snapshot.serving) <= MAX_REPEATED_WORK
        )

    def _is_searchable(self) -> bool:
        """Whether many sets of launches can be tried."""
        items = len(self._all_items())
        return items <= MAX_ITEMS and items * len(self._snapshot.serving) <= MAX_SEARCHED_WORK

    def _all_items(self) -> list[Item]:
        return [*self._launches.all_items(), *items_of(self._workload.floors)]


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
