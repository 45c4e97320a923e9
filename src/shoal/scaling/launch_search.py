"""Searches for a better set of launches: more of the demand met, or the same at a lower price.

A set is a tuple with the number of instances of each option. Sets are compared by what they leave
unmet (floors, then gangs, then tasks), then by price. The search starts from several sets and goes
from neighbour to neighbour while that is better; small sets are then searched exactly. The number
of sets tried is bounded.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from shoal.scaling.bin_packing import pack
from shoal.scaling.exact_search import CoverBounds, cheapest_set
from shoal.scaling.free_capacity import FreeCapacity
from shoal.scaling.instance_mix import MAX_EXACT_INSTANCES
from shoal.scaling.instance_selection import Selection, with_selections
from shoal.scaling.launch_stages import SelectedLaunches, items_of
from shoal.scaling.node_filling import (
    FillOrder,
    LaunchLimits,
    fewest_unplaced,
    launches_by_filling,
)
from shoal.scaling.placement import (
    Unplaced,
    all_placed_by_moving,
    place,
    with_fewest_tasks_left,
)
from shoal.scaling.resource_vectors import Item
from shoal.scaling.workload import SingleNodeItem

# How many instances a neighbour may take away, and how many it may add instead.
MAX_REMOVED = 2
MAX_ADDED = 2
# How many sets may be evaluated, and as many again by the exact search.
MAX_SETS = 150
# How many larger sets are placed thoroughly if something is unmet.
MAX_LARGER_SETS = 8
# How often instances that do not help are exchanged for others.
MAX_EXCHANGES = 4
# How many sets the exact search may consider, most of them excluded by their bounds.
EXACT_STEPS = 1_500
# If the limits allow no more sets than this, all are tried.
MAX_SETS_TRIED = 120
_MIN_SAVING = 1e-12

InstanceSet = tuple[int, ...]
Rank = tuple[int, int, int, float]


class LaunchSearch:
    """One search, for the work of `launches` beside what they have selected already."""

    def __init__(self, launches: SelectedLaunches) -> None:
        self._workload = launches.workload
        self._options = launches.instance_selector.options
        self._bin_types = launches.instance_selector.bin_types
        self._limits, self._total_limit = launches.instance_selector.limits()
        self._free = launches.free_capacity()
        self._total = launches.free_capacity(ignore_usage=True)
        self._bounds = [
            self._bounds_for(self._free, launches.all_items()),
            self._bounds_for(self._total, items_of(self._workload.floors)),
        ]
        self._unplaced: dict[InstanceSet, tuple[Unplaced, Unplaced]] = {}

    def best(self, selected: InstanceSet) -> InstanceSet:
        """The best set found, starting from the selected one and from others."""
        starts = {selected, (0,) * len(self._options), *self._filled()}
        for chosen in starts:
            self._place_thoroughly(chosen)
            self._place_by_moving(chosen)
        best = min(starts, key=lambda chosen: (self._rank(chosen), chosen))
        if self._leaves_unmet(best) and (all_sets := self._sets_within_limits()):
            best = self._best_of_all(best, all_sets)
        else:
            while len(self._unplaced) < MAX_SETS and (better := self._better_neighbour(best)):
                best = better
        if self._leaves_unmet(best):
            return self._exchanged(best)
        if 0 < sum(best) <= MAX_EXACT_INSTANCES:
            best = self._cheapest(best)
        return self._without_spare(best)

    def _best_of_all(self, best: InstanceSet, sets: Sequence[InstanceSet]) -> InstanceSet:
        """The best of these sets. Larger ones come first: what they leave unmet, a part of them
        leaves as well, so that most parts need not be tried."""
        tried: list[tuple[InstanceSet, Rank]] = []
        for chosen in sorted(sets, key=lambda s: (-sum(s), self._price(s), s)):
            unmet, price = self._rank(best)[:3], self._price(best)
            is_cheaper = self._price(chosen) < price - _MIN_SAVING
            if any(
                (rank[:3] > unmet or (rank[:3] == unmet and not is_cheaper))
                and all(a <= b for a, b in zip(chosen, larger, strict=True))
                for larger, rank in tried
            ):
                continue
            tried.append((chosen, self._rank(chosen)))
            if tried[-1][1] < self._rank(best):
                best = chosen
        return best

    def counts(self, selections: Sequence[Selection]) -> InstanceSet:
        """The selections as a set."""
        counts = [0] * len(self._options)
        for selection in selections:
            counts[self._options.index(selection.option)] += selection.count
        return tuple(counts)

    def unplaced(self, chosen: InstanceSet) -> tuple[Unplaced, Unplaced]:
        """What a set leaves of the floors, and of the work."""
        if chosen not in self._unplaced:
            selections = self._selections(chosen)
            total = with_selections(self._total, selections)
            free = with_selections(self._free, selections)
            self._unplaced[chosen] = (
                place(total, tasks=self._workload.floors, fewest_left=True),
                fewest_unplaced(free, self._workload),
            )
        return self._unplaced[chosen]

    def add_placement(self, chosen: InstanceSet, floors: Unplaced, work: Unplaced) -> None:
        """Take another placement on a set into account: it leaves this of the floors and work."""
        known_floors, known_work = self.unplaced(chosen)
        self._unplaced[chosen] = (
            min(known_floors, floors, key=lambda left: sum(left.tasks)),
            min(known_work, work, key=lambda left: (left.gangs, sum(left.tasks))),
        )

    def meets_more(self, chosen: InstanceSet, other: InstanceSet) -> bool:
        """Whether a set leaves less unmet than another."""
        return self._rank(chosen)[:3] < self._rank(other)[:3]

    def _place_thoroughly(self, chosen: InstanceSet) -> None:
        """Look for a placement of more tasks. Takes too long for every set."""
        floors, work = self.unplaced(chosen)
        free = with_selections(self._free, self._selections(chosen))
        self._unplaced[chosen] = floors, with_fewest_tasks_left(free, self._workload, work)

    def _place_by_moving(self, chosen: InstanceSet) -> None:
        """Look for a placement of everything. Takes too long for more than a few sets."""
        floors, work = self.unplaced(chosen)
        free = with_selections(self._free, self._selections(chosen))
        self._unplaced[chosen] = floors, all_placed_by_moving(free, self._workload, work)

    def _leaves_unmet(self, chosen: InstanceSet) -> bool:
        return any(self._rank(chosen)[:3])

    def _exchanged(self, chosen: InstanceSet) -> InstanceSet:
        """The set with more instances, then without those that do not help: that leaves space below
        the limits for others, which may."""
        for _ in range(MAX_EXCHANGES):
            other = self.without_unneeded(self._with_more(chosen))
            if other == chosen:
                break
            chosen = other
        return chosen

    def _with_more(self, chosen: InstanceSet) -> InstanceSet:
        """The set with one or two more instances, if one of the first such sets meets more when it
        is placed as thoroughly as this one."""
        self._place_thoroughly(chosen)
        larger = (
            other
            for other in self._neighbours(chosen)
            if all(a <= b for a, b in zip(chosen, other, strict=True))
        )
        for other in itertools.islice(larger, MAX_LARGER_SETS):
            self.add_placement(other, *self._unplaced_beside(chosen, other))
            self._place_thoroughly(other)
            if self.meets_more(other, chosen):
                return self._with_more(other)
        return chosen

    def _unplaced_beside(
        self, chosen: InstanceSet, larger: InstanceSet
    ) -> tuple[Unplaced, Unplaced]:
        """What a larger set leaves of the floors and the work if what fits with the smaller one
        stays where it is."""
        added = [b - a for a, b in zip(chosen, larger, strict=True)]
        more = with_selections(FreeCapacity(self._free.space), self._selections(tuple(added)))

        def left(tasks: Sequence[SingleNodeItem], unplaced: Unplaced) -> Unplaced:
            pairs = zip(items_of(tasks), unplaced.tasks, strict=True)
            items = [more.space.resized(item, n) for item, n in pairs]
            return replace(unplaced, tasks=tuple(pack(more, items, fewest_left=True, quick=True)))

        floors, work = self.unplaced(chosen)
        return left(self._workload.floors, floors), left(self._workload.tasks, work)

    def _without_spare(self, chosen: InstanceSet) -> InstanceSet:
        """The set without instances whose work fits on the others if some of it is moved. The
        search places too quickly to see that."""
        options = [i for i in range(len(chosen)) if chosen[i]]
        for index in sorted(options, key=lambda i: -self._bin_types[i].price):
            while chosen[index]:
                fewer = (*chosen[:index], chosen[index] - 1, *chosen[index + 1 :])
                if not self._could_meet(fewer):
                    break
                self._place_by_moving(fewer)
                if self._leaves_unmet(fewer):
                    break
                chosen = fewer
        return chosen

    def without_unneeded(self, chosen: InstanceSet) -> InstanceSet:
        """The set without instances that do not help to meet more."""
        self._place_thoroughly(chosen)
        options = [i for i in range(len(chosen)) if chosen[i]]
        for index in sorted(options, key=lambda i: -self._bin_types[i].price):
            while chosen[index]:
                fewer = (*chosen[:index], chosen[index] - 1, *chosen[index + 1 :])
                self._place_thoroughly(fewer)
                if self._rank(fewer) > self._rank(chosen):
                    break
                chosen = fewer
        return chosen if self._leaves_unmet(chosen) else self._without_spare(chosen)

    def _selections(self, chosen: InstanceSet) -> list[Selection]:
        return [Selection(self._options[i], n) for i, n in enumerate(chosen) if n]

    def _rank(self, chosen: InstanceSet) -> Rank:
        """Lower is better."""
        floors, work = self.unplaced(chosen)
        return (sum(floors.tasks), work.gangs, sum(work.tasks), self._price(chosen))

    def _price(self, chosen: InstanceSet) -> float:
        return sum(n * b.price for n, b in zip(chosen, self._bin_types, strict=True))

    def _filled(self) -> Iterator[InstanceSet]:
        """The sets that result from filling nodes one after the other."""
        limits = LaunchLimits(self._bin_types, self._limits, self._total_limit)
        for order in FillOrder:
            launched = launches_by_filling(self._free, self._total, self._workload, limits, order)
            yield tuple(launched[i] for i in range(len(self._options)))

    def _better_neighbour(self, chosen: InstanceSet) -> InstanceSet | None:
        rank = self._rank(chosen)
        is_all_met = not any(rank[:3])
        for other in self._neighbours(chosen):
            if len(self._unplaced) >= MAX_SETS:
                return None
            is_cheaper = self._price(other) < rank[3] - _MIN_SAVING
            if is_all_met and not (is_cheaper and self._could_meet(other)):
                continue
            if self._rank(other) < rank:
                return other
        return None

    def _could_meet(self, chosen: InstanceSet) -> bool:
        """Whether a set may have enough of every resource."""
        indices = tuple(i for i, n in enumerate(chosen) for _ in range(n))
        return all(bound.could_hold(indices) for bound in self._bounds)

    def _neighbours(self, chosen: InstanceSet) -> Iterator[InstanceSet]:
        """Sets that differ in a few instances, the smallest changes first."""
        options = range(len(chosen))
        changes = [
            (removed, added)
            for r in range(MAX_REMOVED + 1)
            for a in range(MAX_ADDED + 1)
            for removed in itertools.combinations_with_replacement(options, r)
            for added in itertools.combinations_with_replacement(options, a)
            if not set(removed) & set(added) and (removed or added)
        ]
        changes.sort(key=lambda change: (len(change[0]) + len(change[1]), len(change[1])))
        for removed, added in changes:
            counts = list(chosen)
            for i in removed:
                counts[i] -= 1
            for i in added:
                counts[i] += 1
            if min(counts) >= 0 and self._is_allowed(counts):
                yield tuple(counts)

    def _is_allowed(self, counts: Sequence[int]) -> bool:
        by_group = [0] * len(self._limits)
        for n, bin_type in zip(counts, self._bin_types, strict=True):
            by_group[bin_type.group] += n
        return sum(counts) <= self._total_limit and all(
            n <= limit for n, limit in zip(by_group, self._limits, strict=True)
        )

    def _sets_within_limits(self) -> list[InstanceSet]:
        """Every set that the limits allow; none if there are too many."""
        sets: list[InstanceSet] = [()]
        for index in range(len(self._bin_types)):
            padding = (0,) * (len(self._bin_types) - index - 1)
            extended: list[InstanceSet] = []
            for counts in sets:
                for n in range(self._total_limit + 1):
                    if not self._is_allowed((*counts, n, *padding)):
                        break
                    extended.append((*counts, n))
                if len(extended) > MAX_SETS_TRIED:
                    return []
            sets = extended
        return sets

    def _cheapest(self, chosen: InstanceSet) -> InstanceSet:
        """The cheapest set that meets everything, if exact search finds one cheaper than this."""

        def fits(indices: tuple[int, ...]) -> bool:
            if len(self._unplaced) >= 2 * MAX_SETS:
                return False
            counts = tuple(indices.count(i) for i in range(len(self._options)))
            return not any(self._rank(counts)[:3])

        cheapest = cheapest_set(
            self._bin_types,
            self._limits,
            self._total_limit,
            self._price(chosen),
            self._bounds,
            fits,
            steps=EXACT_STEPS,
        )
        return chosen if cheapest is None else tuple(cheapest)

    def _bounds_for(self, capacity: FreeCapacity, items: Sequence[Item]) -> CoverBounds:
        bins = [(row.free, row.labels, row.count) for row in capacity.rows]
        return CoverBounds(capacity.space, items, bins, self._bin_types)
