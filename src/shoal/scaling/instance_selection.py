"""Which machines to buy for what has no place, within the limits that are left."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shoal.scaling.bin_packing import pack, small_bins
from shoal.scaling.free_capacity import FreeCapacity
from shoal.scaling.greedy_packing import Supply, fits
from shoal.scaling.instance_mix import EXACT_UP_TO, Mix, Task, choose, exact
from shoal.scaling.offerings import Machine
from shoal.scaling.resource_vectors import Item, ResourceSpace
from shoal.scaling.workload import GangGroup

# Buying for what is left is repeated only where priorities differ.
_MOST_ROUNDS = 20


@dataclass(frozen=True)
class Purchase:
    """So many of one machine."""

    machine: Machine
    count: int


@dataclass(frozen=True)
class ExistingRoom:
    """Room that is there already and everything that is to be laid into it or beside it."""

    room: FreeCapacity
    items: Sequence[Item]


class Market:
    """The machines for sale as supplies, with how many of each type may still be bought."""

    def __init__(
        self,
        frame: ResourceSpace,
        machines: Sequence[Machine],
        limits: Mapping[str, int],
        slots: int,
    ) -> None:
        self._frame = frame
        self._types = sorted(limits)
        self.limits = dict(limits)
        self.slots = slots
        cheapest: dict[object, tuple[Supply, Machine]] = {}
        for machine in sorted(machines, key=lambda m: (m.price, m.node_type, m.market, m.zone)):
            supply = Supply(
                capacity=frame.room(machine.resources),
                labels=frame.label_class(machine.labels),
                special=special_of(frame, machine.resources),
                price=machine.price,
                group=self._types.index(machine.node_type),
            )
            cheapest.setdefault((machine.node_type, supply.labels), (supply, machine))
        self.supplies = [supply for supply, _ in cheapest.values()]
        self.machines = [machine for _, machine in cheapest.values()]
        self._one_priority = len({machine.priority for machine in self.machines}) <= 1

    def holds(self, item: Item) -> list[int]:
        """The supplies that could hold the item, were there no limits."""
        one = self._frame.resized(item, 1)
        return [i for i, s in enumerate(self.supplies) if fits(self._frame, s, one)]

    def take(self, index: int, count: int) -> Purchase:
        """Count machines as bought."""
        machine = self.machines[index]
        self.limits[machine.node_type] -= count
        self.slots -= count
        return Purchase(machine, count)

    def give_back(self, node_type: str, count: int) -> None:
        """Count machines as not bought after all."""
        self.limits[node_type] += count
        self.slots += count

    def buy(self, items: Sequence[Item], beside: ExistingRoom | None = None) -> list[Purchase]:
        """The cheapest mix for the items, or for as many as the limits allow. Where priorities
        differ, only for those items that share the first choice of machines: the caller looks
        again at what is left."""
        chosen = self._first_choice(items)
        if chosen is None:
            return []
        wanted, supplies = chosen
        mix = self._choose(wanted, supplies)
        if beside and len(wanted) == len(items) and not any(mix.left):
            mix = self._with_room(mix, supplies, beside)
        return [self.take(s, n) for s, n in zip(supplies, mix.machines, strict=True) if n]

    def buy_all(self, items: Sequence[Item]) -> list[Purchase] | None:
        """Machines for every one of the items, or none at all if the limits are in the way.
        Priorities are kept if they can be."""
        items = [item for item in items if item.count]
        if not items:
            return []
        before = self.limits, self.slots
        self.limits = dict(self.limits)
        bought: list[Purchase] = []
        left = items
        for _ in range(_MOST_ROUNDS):
            more = self.buy(left)
            bought += more
            left = self._unheld(items, bought)
            if not left:
                return bought
            if not more:
                break
        self.limits, self.slots = dict(before[0]), before[1]
        if not all(self._open(item) for item in items):
            return None
        supplies = [i for i in range(len(self.supplies)) if self._room_for(i)]
        mix = self._choose(items, supplies)
        if any(mix.left):
            return None
        return [self.take(s, n) for s, n in zip(supplies, mix.machines, strict=True) if n]

    def could_buy_all(self, items: Sequence[Item]) -> bool:
        """Whether `buy_all` would succeed."""
        limits, slots = dict(self.limits), self.slots
        bought = self.buy_all(items)
        self.limits, self.slots = limits, slots
        return bought is not None

    def _unheld(self, items: Sequence[Item], bought: Sequence[Purchase]) -> list[Item]:
        """What the machines bought so far cannot hold."""
        room = FreeCapacity(self._frame)
        for purchase in bought:
            add_machines(room, purchase)
        left = pack(room, items)
        return [self._frame.resized(i, n) for i, n in zip(items, left, strict=True) if n]

    def _room_for(self, index: int) -> bool:
        return self.slots > 0 and self.limits[self.machines[index].node_type] > 0

    def _open(self, item: Item) -> list[int]:
        return [i for i in self.holds(item) if self._room_for(i)]

    def _task(self, items: Sequence[Item], supplies: Sequence[int]) -> Task:
        return Task(
            self._frame,
            items,
            [self.supplies[s] for s in supplies],
            [self.limits[t] for t in self._types],
            self.slots,
        )

    def _choose(self, items: Sequence[Item], supplies: Sequence[int]) -> Mix:
        return choose(self._task(items, supplies))

    def _with_room(self, mix: Mix, supplies: Sequence[int], beside: ExistingRoom) -> Mix:
        """A cheaper mix, in small cases, by laying other things into the room there is."""
        bins = small_bins(beside.room.rows)
        if not bins or mix.total > EXACT_UP_TO:
            return mix
        return exact(self._task(beside.items, supplies), bins, mix)

    def _first_choice(self, items: Sequence[Item]) -> tuple[list[Item], list[int]] | None:
        groups: dict[tuple[int, ...], list[Item]] = {}
        for item in sorted(items, key=lambda i: i.hardness):
            able = self._open(item) if item.count else []
            if able:
                groups.setdefault(tuple(self._preferred(item, able)), []).append(item)
        if not groups:
            return None
        if self._one_priority:
            every = sorted(set().union(*groups))
            return [item for group in groups.values() for item in group], every
        supplies, wanted = next(iter(groups.items()))
        return wanted, list(supplies)

    def _preferred(self, item: Item, able: Sequence[int]) -> Sequence[int]:
        """The supplies of the highest priority. A machine with scarce resources that the item
        does not want gains nothing from its priority: it must not draw plain work."""
        if self._one_priority:
            return able
        plain = [i for i in able if not self.supplies[i].special & ~item.special]
        ceiling = min((self.machines[i].priority for i in plain), default=math.inf)

        def rank(i: int) -> float:
            own = self.machines[i].priority
            return own if i in plain else min(own, ceiling)

        highest = max(rank(i) for i in able)
        return [i for i in able if rank(i) == highest]

    def buy_apart(self, room: FreeCapacity, team: GangGroup) -> list[Purchase]:
        """Machines so that all gangs of a team that spreads strictly find nodes, as far as the
        limits allow: gang by gang, using what the gangs before it left."""
        room = room.copy()
        singles = [self._frame.resized(item, 1) for item in team.singles()]
        bought: list[Purchase] = []
        for done in range(team.count):
            missing = room.place_apart(singles)
            if not missing:
                continue
            more = self._for_each([singles[i] for i in missing], team.count - done)
            if more is None:
                break
            for purchase in more:
                add_machines(room, purchase)
            bought += more
            room.place_apart(singles)
        return bought

    def _for_each(self, singles: Sequence[Item], gangs: int) -> list[Purchase] | None:
        """One machine for each, the best by price over all gangs to come; all or nothing."""
        limits, slots = dict(self.limits), self.slots
        bought = []
        for item in singles:
            many = self._frame.resized(item, gangs)
            able = self._open(item)
            if not able:
                self.limits, self.slots = limits, slots
                return None
            preferred = self._preferred(item, able)
            best = min(preferred, key=lambda i: (self._price_for(i, many), i))
            bought.append(self.take(best, 1))
        return bought

    def _price_for(self, index: int, item: Item) -> float:
        supply = self.supplies[index]
        return supply.price * math.ceil(item.count / fits(self._frame, supply, item))


def special_of(frame: ResourceSpace, resources: Mapping[str, float]) -> int:
    """The scarce resources that a machine has, as bits."""
    return frame.special_mask(name for name, amount in resources.items() if amount > 0)


def add_machines(room: FreeCapacity, purchase: Purchase) -> None:
    """Count bought machines in as room."""
    machine, frame = purchase.machine, room.frame
    room.add(
        frame.room(machine.resources),
        frame.label_class(machine.labels),
        special_of(frame, machine.resources),
        machine.price,
        True,
        purchase.count,
    )
