"""The launches that scale-up has selected so far, by stage, and what fits with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from shoal.scaling.free_capacity import FreeCapacity
from shoal.scaling.instance_selection import (
    InstanceSelector,
    Selection,
    add_selection,
    with_selections,
)
from shoal.scaling.offerings import InstanceOption
from shoal.scaling.placement import Unplaced, largest_feasible, place
from shoal.scaling.reasons import because_of_demand, because_of_floors, because_of_gangs
from shoal.scaling.resource_vectors import Item, ResourceSpace
from shoal.scaling.scaling_plan import Cause, PlannedLaunch, Reason
from shoal.scaling.snapshot import ClusterSnapshot
from shoal.scaling.workload import SingleNodeItem, Workload

# Launches that depend on the work; the others are for targets of their own.
_FOR_WORK = frozenset({Cause.FLOOR, Cause.GANG, Cause.DEMAND})

NONE_UNPLACED = Unplaced((), (), ())


@dataclass
class LaunchStage:
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


class SelectedLaunches:
    """The stages selected so far. `instance_selector` counts them against the limits;
    `interrupted` of the requests replace the work of interrupted nodes. `unplaced_floors` and
    `unplaced` are what did not fit when it was last placed."""

    def __init__(
        self,
        space: ResourceSpace,
        snapshot: ClusterSnapshot,
        workload: Workload,
        instance_selector: InstanceSelector,
        interrupted: int,
    ) -> None:
        self.space = space
        self.snapshot = snapshot
        self.workload = workload
        self.instance_selector = instance_selector
        self.interrupted = interrupted
        self.stages: list[LaunchStage] = []
        self.unplaced_floors = NONE_UNPLACED
        self.unplaced = NONE_UNPLACED

    @property
    def selected(self) -> list[Selection]:
        """All instances selected so far."""
        return [selection for stage in self.stages for selection in stage.selections]

    def free_capacity(self, *, ignore_usage: bool = False) -> FreeCapacity:
        free_capacity = self.snapshot.free_capacity(self.space, ignore_usage=ignore_usage)
        for selection in self.selected:
            add_selection(free_capacity, selection)
        return free_capacity

    def place_work(self, free_capacity: FreeCapacity, *, fewest_left: bool = False) -> Unplaced:
        workload = self.workload
        return place(
            free_capacity,
            workload.gang_groups,
            workload.strict_pack_gangs,
            workload.tasks,
            fewest_left=fewest_left,
        )

    def all_unplaced(self) -> tuple[Unplaced, Unplaced]:
        """What does not fit with everything selected so far: floors, and work."""
        return (
            place(self.free_capacity(ignore_usage=True), tasks=self.workload.floors),
            self.place_work(self.free_capacity()),
        )

    def undo(self, selected: Iterable[Selection]) -> None:
        for selection in selected:
            self.instance_selector.remove(selection.option.node_type, selection.count)

    def restore(self, stages: list[LaunchStage], selected: Iterable[Selection]) -> None:
        self.stages = stages
        for selection in selected:
            option = self.instance_selector.options.index(selection.option)
            self.instance_selector.add(option, selection.count)

    def work_stages(self) -> list[LaunchStage]:
        return [stage for stage in self.stages if stage.reason.cause in _FOR_WORK]

    def take_back_work_launches(self) -> tuple[list[LaunchStage], list[Selection]]:
        """Take back the launches for floors, gangs and tasks. Returns all stages as they were, and
        these launches."""
        before, stages = self.stages, self.work_stages()
        selected = [s for stage in stages for s in stage.selections if s.count]
        self.stages = [stage for stage in before if stage not in stages]
        self.undo(selected)
        return before, selected

    def add(self, selections: Sequence[Selection], reason: Reason, *, throttled: bool) -> None:
        self.stages.append(LaunchStage(list(selections), reason, throttled))

    def add_by_need(self, selections: Sequence[Selection]) -> None:
        """Add launches as stages: what floors need of them, what gangs need, and the rest, which
        tasks need."""
        workload = self.workload
        total, free = self.free_capacity(ignore_usage=True), self.free_capacity()
        lacking = place(total, tasks=workload.floors)
        floors_left = place(with_selections(total, selections), tasks=workload.floors)

        def floors_fit(chosen: Sequence[Selection]) -> bool:
            return place(with_selections(total, chosen), tasks=workload.floors) == floors_left

        for_floors, rest = _split(selections, floors_fit)
        if for_floors:
            reason = because_of_floors(workload.floors, sum(lacking.tasks))
            self.add(for_floors, reason, throttled=False)
        free = with_selections(free, for_floors)
        gangs = workload.gang_groups, workload.strict_pack_gangs
        lacking = place(free, *gangs)
        gangs_left = place(with_selections(free, rest), *gangs)

        def gangs_fit(chosen: Sequence[Selection]) -> bool:
            return place(with_selections(free, chosen), *gangs) == gangs_left

        for_gangs, rest = _split(rest, gangs_fit)
        if for_gangs:
            self.add(for_gangs, because_of_gangs(*gangs, lacking), throttled=False)
        if rest:
            lacking = self.place_work(with_selections(free, for_gangs))
            self.add(rest, self.reason_for_tasks(lacking.tasks), throttled=True)

    def reason_for_tasks(self, lacking: Sequence[int]) -> Reason:
        """Names the tasks that some node type can hold; the others are listed as unmet."""
        pairs = zip(self.workload.tasks, lacking, strict=True)
        placeable = [
            (task, n) for task, n in pairs if self.instance_selector.options_for(task.item)
        ]
        total_lacking = sum(n for _, n in placeable)
        return because_of_demand([task for task, _ in placeable], total_lacking, self.interrupted)

    def all_items(self) -> list[Item]:
        space, workload = self.space, self.workload
        bundles = [i for g in workload.gang_groups for i in g.bundles_of(space, g.count)]
        return [*bundles, *items_of(workload.strict_pack_gangs), *items_of(workload.tasks)]

    def placed_items(self, unplaced: tuple[Unplaced, Unplaced]) -> tuple[list[Item], list[Item]]:
        """The floors, and the work, without what is not placed."""
        workload, space = self.workload, self.space
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


def items_of(single_items: Sequence[SingleNodeItem]) -> list[Item]:
    return [entry.item for entry in single_items]


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
