"""Which instances to launch for what does not fit, within the remaining limits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from shoal.scaling.bin_packing import pack, small_bins
from shoal.scaling.free_capacity import FreeCapacity
from shoal.scaling.greedy_packing import BinType, copies_that_fit
from shoal.scaling.instance_mix import MAX_EXACT_INSTANCES, Mix, MixProblem, cheapest_mix, exact_mix
from shoal.scaling.offerings import InstanceOption
from shoal.scaling.packing_bounds import needed_units
from shoal.scaling.resource_vectors import Item, ResourceSpace
from shoal.scaling.strict_spread import LaunchChoices

# Selecting for what is left is repeated only where priorities differ.
_MAX_ROUNDS = 20
# Every instance counts as this much of the cheapest one more than its price: too little to prefer a
# dearer mix, enough to prefer fewer instances.
SURCHARGE = 1e-8
# Costs of instances for a STRICT_SPREAD gang, as integers: label selectors go before priorities,
# and those before prices.
_COST_UNIT = 1e-10
_RANK_COST = 10**20
_PREFERENCE_COST = 10**30


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
        self.all_options = options
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
        # At equal price fewer instances are better.
        surcharge = SURCHARGE * min((b.price for b, _ in cheapest.values()), default=0.0)
        self.bin_types = [replace(b, price=b.price + surcharge) for b, _ in cheapest.values()]
        self.options = [option for _, option in cheapest.values()]
        self._single_priority = len({option.priority for option in self.options}) <= 1
        # A mix that is not enough for everything is looked for again with all options.
        self._last_mix: tuple[object, Mix] | None = None

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
        if not self._could_hold(items):
            return None
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

    def _could_hold(self, items: Sequence[Item]) -> bool:
        """Whether the limits allow enough of every resource, so that trying makes sense."""
        for axis in range(len(self._space.names)):
            largest = sorted(
                ((b.capacity[axis], self.remaining_by_type[self._types[b.group]])
                 for b in self.bin_types), reverse=True)  # fmt: skip
            for unit, needed in needed_units(items, axis):
                capacity, instances = 0, self.remaining
                for amount, allowed in largest:
                    n = max(0, min(allowed, instances))
                    capacity += amount // unit * n
                    instances -= n
                    if capacity >= needed:
                        break
                if capacity < needed:
                    return False
        return True

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
        """The options that can hold the item within the limits; of its label selectors, those that
        meet the first for which there is any."""
        options = [i for i in self.options_for(item) if self._is_open(i)]
        if not item.selector or not self._space.has_alternatives(item.selector):
            return options
        first = min((self._preference(item, i) for i in options), default=0)
        return [i for i in options if self._preference(item, i) == first]

    def is_any_open(self) -> bool:
        """Whether the limits allow any instance."""
        return any(map(self._is_open, range(len(self.options))))

    def limits(self) -> tuple[list[int], int]:
        """How many more instances are allowed, per group of bin types and in total."""
        return [self.remaining_by_type[t] for t in self._types], self.remaining

    def price_of(self, selection: Selection) -> float:
        """The price to compare by: with the surcharge of every instance."""
        return self.bin_types[self.options.index(selection.option)].price * selection.count

    def _problem(self, items: Sequence[Item], options: Sequence[int]) -> MixProblem:
        return MixProblem(
            self._space,
            items,
            [self.bin_types[o] for o in options],
            *self.limits(),
        )

    def _cheapest_mix(self, items: Sequence[Item], options: Sequence[int]) -> Mix:
        limits, total_limit = self.limits()
        key = (tuple(items), tuple(options), tuple(limits), total_limit)
        if self._last_mix is None or self._last_mix[0] != key:
            self._last_mix = (key, cheapest_mix(self._problem(items, options)))
        return self._last_mix[1]

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
        if not self.has_preferences(items):
            all_options = sorted(set().union(*groups))
            return [item for group in groups.values() for item in group], all_options
        options, chosen_items = next(iter(groups.items()))
        return chosen_items, list(options)

    def has_preferences(self, items: Iterable[Item]) -> bool:
        """Whether anything but the price decides: priorities, or the order of label selectors."""
        return not self._single_priority or any(
            self._space.has_alternatives(item.selector) for item in items
        )

    def _preferred(self, item: Item, candidates: Sequence[int]) -> Sequence[int]:
        """The options of the highest priority. An option with scarce resources that the item does
        not need does not profit from its priority: it must not attract CPU work."""
        if self._single_priority:
            return candidates
        rank = self._ranks(item, candidates)
        highest = max(rank.values())
        return [i for i in candidates if rank[i] == highest]

    def _ranks(self, item: Item, candidates: Sequence[int]) -> dict[int, float]:
        without_extra = [i for i in candidates if not self.bin_types[i].scarce & ~item.scarce]
        ceiling = min((self.options[i].priority for i in without_extra), default=math.inf)
        return {
            i: own if i in without_extra else min(own, ceiling)
            for i in candidates
            for own in (self.options[i].priority,)
        }

    def _preference(self, item: Item, index: int) -> int:
        """The position of the label selector that an option meets; the first is preferred."""
        labels = self.bin_types[index].labels
        return self._space.preference(item.selector, labels) or 0 if item.selector else 0

    def choices(self, bundles: Sequence[Item], gangs: int) -> LaunchChoices:
        """The instances that may be launched for one of this many equal STRICT_SPREAD gangs. The
        cost of an option is that of all gangs, which can share its instances."""
        costs: list[dict[int, int]] = []
        for item in bundles:
            many = self._space.resized(item, gangs)
            options = self.options_for(item)
            rank = self._ranks(item, options)
            highest = max(rank.values(), default=0.0)
            costs.append(
                {
                    o: int(highest - rank[o]) * _RANK_COST
                    + self._preference(item, o) * _PREFERENCE_COST
                    + round(self._price_for(o, many) / _COST_UNIT)
                    for o in options
                }
            )
        limits = [max(0, self.remaining_by_type[t]) for t in self._types]
        return LaunchChoices(self.bin_types, costs, limits, max(0, self.remaining))

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


def with_selections(free_capacity: FreeCapacity, selections: Iterable[Selection]) -> FreeCapacity:
    """A copy of the free capacity with selected instances added."""
    result = free_capacity.copy()
    for selection in selections:
        if selection.count:
            add_selection(result, selection)
    return result
