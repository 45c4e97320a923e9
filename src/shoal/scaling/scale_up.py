"""What to launch: minimums, floors, gangs, tasks, in that order, each counting on what the one
before it bought.

Every stage asks "does it fit, with what is bought so far?" of the same packer that will be asked
when the machines are on their way. So a plan that has been carried out asks for nothing more.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from shoal.scaling.free_capacity import FreeCapacity
from shoal.scaling.gangs import buy_gangs
from shoal.scaling.instance_selection import ExistingRoom, Market, Purchase, add_machines
from shoal.scaling.legacy_targets import Targets
from shoal.scaling.offerings import Machine, Offerings
from shoal.scaling.placement import Unplaced, most, place
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

# However small the cluster, so many machines may be on their way at once.
FIRST_CHUNK = 5
# Each round buys for what the last one left; more than a few are needed only where priorities
# differ or limits are tight.
MOST_ROUNDS = 40

_NOTHING = Unplaced((), ())


@dataclass
class ScaleUpResult:
    """What to launch, and what has no place even so."""

    launches: list[PlannedLaunch] = field(default_factory=list)
    below_minimum: Counter[str] = field(default_factory=Counter)
    floors: Unplaced = _NOTHING
    work: Unplaced = _NOTHING
    held_back: int = 0
    chunk: float = 0.0


class ScaleUp:
    """One run through the stages. So many of the tasks are `displaced`: what takes over for a
    machine that is taken away is no growth, and is not held back as such."""

    def __init__(
        self,
        frame: ResourceSpace,
        census: ClusterSnapshot,
        shop: Offerings,
        work: Workload,
        *,
        displaced: int = 0,
    ) -> None:
        self._displaced = displaced
        self._frame = frame
        self._census = census
        self._work = work
        self.market = Market(frame, shop.machines, census.limits(), census.slots())
        self._orders: list[_Order] = []
        self._growth = ScaleUpResult()

    def run(self, targets: Targets) -> ScaleUpResult:
        """All stages, in the order of what must not wait."""
        self._minimums()
        self._floors()
        self._gangs()
        self._top_up(targets.initial, because_of_initial_workers, throttled=False)
        self._growth.chunk = self._chunk()
        self._tasks()
        self._top_up(targets.utilization, because_of_utilization, throttled=True)
        while self._return_spare() and not self._growth.held_back:
            self._tasks()
        self._growth.launches = [launch for order in self._orders for launch in order.launches()]
        return self._growth

    def _minimums(self) -> None:
        for name, node_type in sorted(self._census.spec.node_types.items()):
            have = self._census.serving_by_type[name]
            lacking = node_type.min_workers - have
            if lacking <= 0:
                continue
            index = self._cheapest({name})
            allowed = min(lacking, self.market.limits[name], self.market.slots)
            if index is not None and allowed > 0:
                purchase = self.market.take(index, allowed)
                reason = because_of_minimum(name, node_type.min_workers, have)
                self._launch([purchase], reason, throttled=False)
                lacking -= allowed
            if lacking:
                self._growth.below_minimum[name] = lacking

    def _floors(self) -> None:
        floors = self._work.floors
        if not floors:
            return
        whole = self._room(whole=True)
        for _ in range(MOST_ROUNDS):
            self._growth.floors = unplaced = place(whole, (), floors)
            bought = self._buy_loose(floors, unplaced.loose, ExistingRoom(whole, _items(floors)))
            if not bought:
                return
            for purchase in bought:
                add_machines(whole, purchase)
            lacking = sum(unplaced.loose)
            self._launch(bought, because_of_floors(floors, lacking), throttled=False)

    def _gangs(self) -> None:
        teams, packed = self._work.teams, self._work.packed_gangs
        if not teams and not packed:
            return
        room = self._room()
        for _ in range(MOST_ROUNDS):
            unplaced = place(room, teams, packed)
            bought = buy_gangs(self.market, room, teams, packed, unplaced)
            if not bought:
                return
            for purchase in bought:
                add_machines(room, purchase)
            self._launch(bought, because_of_gangs(teams, packed, unplaced), throttled=False)

    def _tasks(self) -> None:
        teams = self._work.teams
        loose = [*self._work.packed_gangs, *self._work.tasks]
        first_task = len(self._work.packed_gangs)
        if not teams and not loose:
            return  # to add up the room on thousands of nodes for nothing is most of a plan
        room = self._room()
        bought: list[Purchase] = []
        lacking: Sequence[int] = ()
        for number in range(MOST_ROUNDS):
            self._growth.work = unplaced = place(room, teams, loose)
            left = unplaced.loose[first_task:]
            if number == 0:
                lacking = left
            beside = None if teams else ExistingRoom(room, _items(loose))
            more = self._buy_loose(self._work.tasks, left, beside)
            if not more:
                break
            bought += more
            for purchase in more:
                add_machines(room, purchase)
        now = self._within_chunk(bought)
        if now:
            self._launch(now, self._reason_for_tasks(lacking), throttled=True)

    def _reason_for_tasks(self, lacking: Sequence[int]) -> Reason:
        """Names the tasks that can be helped; the others are named among what is unmet."""
        pairs = zip(self._work.tasks, lacking, strict=True)
        helped = [(task, n) for task, n in pairs if self.market.holds(task.item)]
        lacking_in_all = sum(n for _, n in helped)
        return because_of_demand([task for task, _ in helped], lacking_in_all, self._displaced)

    def _top_up(
        self, workers: int, reason: Callable[[int, int], Reason], *, throttled: bool
    ) -> None:
        """Launch plain workers until there are so many."""
        have = sum(self._census.serving_by_type.values()) + sum(p.count for p in self.bought)
        bought: list[Purchase] = []
        for _ in self._census.spec.node_types:
            lacking = min(workers - have - sum(p.count for p in bought), self.market.slots)
            index = self._cheapest({name for name, n in self.market.limits.items() if n > 0})
            if lacking <= 0 or index is None:
                break
            room = self.market.limits[self.market.machines[index].node_type]
            bought.append(self.market.take(index, min(lacking, room)))
        now = self._within_chunk(bought) if throttled else bought
        self._launch(now, reason(workers, have), throttled=throttled)

    def _cheapest(self, types: set[str]) -> int | None:
        """The offer to take when any worker of these types will do: not the head's type if there
        is another."""
        head = self._census.spec.head_node_type

        def order(index: int) -> tuple[float, bool, float, int]:
            machine = self.market.machines[index]
            return (-machine.priority, machine.node_type == head, machine.price, index)

        able = [i for i, machine in enumerate(self.market.machines) if machine.node_type in types]
        return min(able, key=order, default=None)

    def _chunk(self) -> float:
        """How many throttled machines may still be added to those on their way."""
        scaling = self._census.spec.scaling
        if scaling.autoscaling_mode == "aggressive":
            return math.inf
        allowed = max(FIRST_CHUNK, math.ceil(scaling.upscaling_speed * self._census.ready_count))
        return max(0, allowed + self._displaced - self._census.throttled_count)

    def _within_chunk(self, bought: Sequence[Purchase]) -> list[Purchase]:
        """As many machines as may start now, in the proportions of the whole mix."""
        wanted = sum(p.count for p in bought)
        used = sum(p.count for order in self._orders if order.throttled for p in order.purchases)
        allowed = int(min(wanted, max(0, self._growth.chunk - used)))
        self._growth.held_back += wanted - allowed
        if allowed == wanted:
            return list(bought)
        counts = [p.count * allowed // wanted for p in bought]
        by_rest = sorted(
            range(len(bought)), key=lambda i: (-(bought[i].count * allowed % wanted), i)
        )
        for index in by_rest[: allowed - sum(counts)]:
            counts[index] += 1
        return [Purchase(p.machine, n) for p, n in zip(bought, counts, strict=True) if n]

    def _buy_loose(
        self, loose: Sequence[SingleNodeItem], left: Sequence[int], beside: ExistingRoom | None
    ) -> list[Purchase]:
        return self.market.buy(self._resized(loose, left), beside) if any(left) else []

    def _resized(self, loose: Sequence[SingleNodeItem], left: Sequence[int]) -> list[Item]:
        pairs = zip(loose, left, strict=True)
        return [self._frame.resized(entry.item, n) for entry, n in pairs if n]

    def _room(self, *, whole: bool = False) -> FreeCapacity:
        room = self._census.room(self._frame, whole=whole)
        for purchase in self.bought:
            add_machines(room, purchase)
        return room

    def _return_spare(self) -> int:
        """Floors come first so that tasks cannot take their place. What tasks and gangs brought
        may serve them as well, and then what was bought for the floors alone is too much. How
        many machines were too many."""
        return sum(
            self._return_spare_of(order, index)
            for order in self._orders
            if order.reason.cause is Cause.FLOOR
            for index in range(len(order.purchases))
        )

    def _return_spare_of(self, order: _Order, index: int) -> int:
        wanted = self._missing()
        purchase = order.purchases[index]

        def without(fewer: int) -> bool:
            order.purchases[index] = Purchase(purchase.machine, purchase.count - fewer)
            return self._missing() == wanted

        spare = most(purchase.count, without)
        order.purchases[index] = Purchase(purchase.machine, purchase.count - spare)
        self.market.give_back(purchase.machine.node_type, spare)
        return spare

    def _missing(self) -> tuple[Unplaced, Unplaced]:
        """What floors and work lack with all that is ordered."""
        loose = [*self._work.packed_gangs, *self._work.tasks]
        return (
            place(self._room(whole=True), (), self._work.floors),
            place(self._room(), self._work.teams, loose),
        )

    @property
    def bought(self) -> list[Purchase]:
        """All that is ordered so far."""
        return [purchase for order in self._orders for purchase in order.purchases]

    def _launch(self, purchases: Sequence[Purchase], reason: Reason, *, throttled: bool) -> None:
        self._orders.append(_Order(list(purchases), reason, throttled))


@dataclass
class _Order:
    """Machines bought in one stage, for one reason."""

    purchases: list[Purchase]
    reason: Reason
    throttled: bool

    def launches(self) -> list[PlannedLaunch]:
        """One launch for each kind of machine."""
        counts: Counter[tuple[str, str, str]] = Counter()
        machines: dict[tuple[str, str, str], Machine] = {}
        for purchase in self.purchases:
            machine = purchase.machine
            key: tuple[str, str, str] = (machine.node_type, machine.market, machine.zone)
            machines[key] = machine
            counts[key] += purchase.count
        return [
            PlannedLaunch(
                node_type=machine.node_type,
                count=counts[key],
                reason=self.reason,
                market=machine.market,
                zone=machine.zone,
                price_per_hour=machine.price if machine.priced else None,
                throttled=self.throttled,
            )
            for key, machine in sorted(machines.items())
            if counts[key]
        ]


def _items(loose: Sequence[SingleNodeItem]) -> list[Item]:
    return [entry.item for entry in loose]
