"""Which instances to launch for what does not fit, within the remaining limits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shoal.scaling.bin_packing import pack, small_bins
from shoal.scaling.free_capacity import FreeCapacity
from shoal.scaling.greedy_packing import BinType, copies_that_fit
from shoal.scaling.instance_mix import MAX_EXACT_INSTANCES, Mix, MixProblem, cheapest_mix, exact_mix
from shoal.scaling.offerings import InstanceOption
from shoal.scaling.resource_vectors import Item, ResourceSpace
from shoal.scaling.workload import GangGroup

# Selecting for what is left is repeated only where priorities differ.
_MAX_ROUNDS = 20


@dataclass(frozen=True)
class Selection:
    """`count` instances of one option."""

    option: InstanceOption
    count: int


@dataclass(frozen=True)
class ExistingCapacity:
    """The free capacity, and everything that is to be placed in it or on new instances."""

    free_capacity: FreeCapacity
    items: Sequence[Item]


class InstanceSelector:
    """Selects instances from the options and keeps track of how many more each type
    (`remaining_by_type`) and the cluster (`remaining`) may have. Of options that differ only in
    price, zone or market it uses the cheapest. `options` and `bin_types` have the same indices."""

    def __init__(
        self,
        space: ResourceSpace,
        options: Sequence[InstanceOption],
        remaining_by_type: Mapping[str, int],
        remaining: int,
    ) -> None:
        self._space = space
        self._types = sorted(remaining_by_type)
        self.remaining_by_type = dict(remaining_by_type)
        self.remaining = remaining
        cheapest: dict[object, tuple[BinType, InstanceOption]] = {}
        for option in sorted(options, key=lambda o: (o.price, o.node_type, o.market, o.zone)):
            bin_type = BinType(
                capacity=space.vector(option.resources),
                labels=space.label_class(option.labels),
                scarce=scarce_bits(space, option.resources),
                price=option.price,
                group=self._types.index(option.node_type),
            )
            cheapest.setdefault((option.node_type, bin_type.labels), (bin_type, option))
        self.bin_types = [bin_type for bin_type, _ in cheapest.values()]
        self.options = [option for _, option in cheapest.values()]
        self._single_priority = len({option.priority for option in self.options}) <= 1

    def options_for(self, item: Item) -> list[int]:
        """The options that can hold the item, ignoring limits."""
        single = self._space.resized(item, 1)
        return [
            index
            for index, bin_type in enumerate(self.bin_types)
            if copies_that_fit(self._space, bin_type, single)
        ]

    def add(self, index: int, count: int) -> Selection:
        """Count instances against the limits."""
        option = self.options[index]
        self.remaining_by_type[option.node_type] -= count
        self.remaining -= count
        return Selection(option, count)

    def remove(self, node_type: str, count: int) -> None:
        """Count instances as not selected after all."""
        self.remaining_by_type[node_type] += count
        self.remaining += count

    def select(
        self, items: Sequence[Item], existing: ExistingCapacity | None = None
    ) -> list[Selection]:
        """The cheapest mix for the items, or for as many as the limits allow. Where priorities
        differ, only for the items that prefer the same options: the caller calls again for what is
        left."""
        chosen = self._first_choice(items)
        if chosen is None:
            return []
        chosen_items, options = chosen
        mix = self._cheapest_mix(chosen_items, options)
        if existing and len(chosen_items) == len(items) and not any(mix.left):
            mix = self._with_existing(mix, options, existing)
        return [self.add(o, n) for o, n in zip(options, mix.counts, strict=True) if n]

    def select_all(self, items: Sequence[Item]) -> list[Selection] | None:
        """Instances for all items, or None if the limits do not allow it. Keeps priorities if
        possible."""
        items = [item for item in items if item.count]
        if not items:
            return []
        before = self.remaining_by_type, self.remaining
        self.remaining_by_type = dict(self.remaining_by_type)
        selected: list[Selection] = []
        left = items
        for _ in range(_MAX_ROUNDS):
            more = self.select(left)
            selected += more
            left = self._not_held(items, selected)
            if not left:
                return selected
            if not more:
                break
        self.remaining_by_type, self.remaining = dict(before[0]), before[1]
        if not all(self._open_options_for(item) for item in items):
            return None
        options = [i for i in range(len(self.bin_types)) if self._is_open(i)]
        mix = self._cheapest_mix(items, options)
        if any(mix.left):
            return None
        return [self.add(o, n) for o, n in zip(options, mix.counts, strict=True) if n]

    def can_select_all(self, items: Sequence[Item]) -> bool:
        """Whether `select_all` would succeed."""
        remaining_by_type, remaining = dict(self.remaining_by_type), self.remaining
        selected = self.select_all(items)
        self.remaining_by_type, self.remaining = remaining_by_type, remaining
        return selected is not None

    def _not_held(self, items: Sequence[Item], selected: Sequence[Selection]) -> list[Item]:
        """What does not fit on the instances selected so far."""
        free_capacity = FreeCapacity(self._space)
        for selection in selected:
            add_selection(free_capacity, selection)
        left = pack(free_capacity, items)
        return [self._space.resized(i, n) for i, n in zip(items, left, strict=True) if n]

    def _is_open(self, index: int) -> bool:
        return self.remaining > 0 and self.remaining_by_type[self.options[index].node_type] > 0

    def _open_options_for(self, item: Item) -> list[int]:
        return [i for i in self.options_for(item) if self._is_open(i)]

    def _problem(self, items: Sequence[Item], options: Sequence[int]) -> MixProblem:
        return MixProblem(
            self._space,
            items,
            [self.bin_types[o] for o in options],
            [self.remaining_by_type[t] for t in self._types],
            self.remaining,
        )

    def _cheapest_mix(self, items: Sequence[Item], options: Sequence[int]) -> Mix:
        return cheapest_mix(self._problem(items, options))

    def _with_existing(self, mix: Mix, options: Sequence[int], existing: ExistingCapacity) -> Mix:
        """In small cases, a cheaper mix found by placing other items in the free capacity."""
        bins = small_bins(existing.free_capacity.rows)
        if not bins or mix.total > MAX_EXACT_INSTANCES:
            return mix
        return exact_mix(self._problem(existing.items, options), bins, mix)

    def _first_choice(self, items: Sequence[Item]) -> tuple[list[Item], list[int]] | None:
        groups: dict[tuple[int, ...], list[Item]] = {}
        for item in sorted(items, key=lambda i: i.hardness):
            candidates = self._open_options_for(item) if item.count else []
            if candidates:
                groups.setdefault(tuple(self._preferred(item, candidates)), []).append(item)
        if not groups:
            return None
        if self._single_priority:
            all_options = sorted(set().union(*groups))
            return [item for group in groups.values() for item in group], all_options
        options, chosen_items = next(iter(groups.items()))
        return chosen_items, list(options)

    def _preferred(self, item: Item, candidates: Sequence[int]) -> Sequence[int]:
        """The options of the highest priority. An option with scarce resources that the item does
        not need does not profit from its priority: it must not attract CPU work."""
        if self._single_priority:
            return candidates
        without_extra = [i for i in candidates if not self.bin_types[i].scarce & ~item.scarce]
        ceiling = min((self.options[i].priority for i in without_extra), default=math.inf)

        def rank(i: int) -> float:
            own = self.options[i].priority
            return own if i in without_extra else min(own, ceiling)

        highest = max(rank(i) for i in candidates)
        return [i for i in candidates if rank(i) == highest]

    def select_for_strict_spread(
        self, free_capacity: FreeCapacity, gang_group: GangGroup
    ) -> list[Selection]:
        """Instances for all gangs of a STRICT_SPREAD group, as far as the limits allow: gang by
        gang, each using what the gangs before it left."""
        free_capacity = free_capacity.copy()
        bundles = [self._space.resized(item, 1) for item in gang_group.single_bundles()]
        selected: list[Selection] = []
        for placed in range(gang_group.count):
            missing = free_capacity.place_on_distinct_nodes(bundles)
            if not missing:
                continue
            more = self._one_instance_each([bundles[i] for i in missing], gang_group.count - placed)
            if more is None:
                break
            for selection in more:
                add_selection(free_capacity, selection)
            selected += more
            free_capacity.place_on_distinct_nodes(bundles)
        return selected

    def _one_instance_each(self, bundles: Sequence[Item], gangs: int) -> list[Selection] | None:
        """One instance for each bundle, the cheapest over all remaining gangs; all or nothing."""
        remaining_by_type, remaining = dict(self.remaining_by_type), self.remaining
        selected = []
        for item in bundles:
            many = self._space.resized(item, gangs)
            candidates = self._open_options_for(item)
            if not candidates:
                self.remaining_by_type, self.remaining = remaining_by_type, remaining
                return None
            preferred = self._preferred(item, candidates)
            best = min(preferred, key=lambda i: (self._price_for(i, many), i))
            selected.append(self.add(best, 1))
        return selected

    def _price_for(self, index: int, item: Item) -> float:
        bin_type = self.bin_types[index]
        return bin_type.price * math.ceil(item.count / copies_that_fit(self._space, bin_type, item))


def scarce_bits(space: ResourceSpace, resources: Mapping[str, float]) -> int:
    """The scarce resources of a node, as bits."""
    return space.scarce_mask(name for name, amount in resources.items() if amount > 0)


def add_selection(free_capacity: FreeCapacity, selection: Selection) -> None:
    """Add selected instances to the free capacity."""
    option, space = selection.option, free_capacity.space
    free_capacity.add(
        space.vector(option.resources),
        space.label_class(option.labels),
        scarce_bits(space, option.resources),
        option.price,
        True,
        selection.count,
    )
