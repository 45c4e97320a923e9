"""The simulated machines: which are free for what, and what runs on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from shoal.core.node_phase import Phase
from shoal.scaling.demand import Resources, Strategy
from shoal.scaling.inputs import Market, NodeView
from shoal.scaling.instance_selection import special_of
from shoal.scaling.resource_vectors import UNIT, Item, LabelClass, ResourceSpace, Vector, copies

# One mapping for all that are on their way, so that the planner sees them as equal.
_UNKNOWN: Resources = {}


@dataclass(eq=False)
class Machine:
    """One machine through its life."""

    id: str
    kind: Kind
    requested: float
    price: float
    phase: Phase = Phase.REQUESTED
    is_head: bool = False
    market: Market = "on-demand"
    zone: str = ""
    throttled: bool = True
    free: Vector = ()
    ready_at: float = 0.0
    idle_since: float = 0.0
    busy_s: float = 0.0
    busy_since: float = 0.0
    runs: dict[int, Run] = field(default_factory=dict)
    view: NodeView | None = None


@dataclass(frozen=True)
class Run:
    """Copies of an item at work on a machine, and where they came from."""

    item: Item
    copies: int
    origin: object


@dataclass(frozen=True)
class Kind:
    """What all machines of a node type share."""

    name: str
    total: Resources
    labels: Mapping[str, str]
    capacity: Vector
    label_class: LabelClass
    special: int
    idle_timeout_s: float


class Fleet:
    """All ready machines, by what is free on them."""

    def __init__(self, frame: ResourceSpace) -> None:
        self.frame = frame
        self._by_room: dict[tuple[str, Vector], dict[Machine, None]] = {}
        self._kinds: dict[str, Kind] = {}
        self.idle: dict[Machine, None] = {}
        # One mapping for all machines with the same room: quicker to read for the planner.
        self._mappings: dict[tuple[str, Vector], Resources] = {}

    def kind(
        self, name: str, total: Resources, labels: Mapping[str, str], idle_timeout_s: float
    ) -> Kind:
        """The node type of this name."""
        if name not in self._kinds:
            frame = self.frame
            self._kinds[name] = Kind(
                name,
                dict(total),
                dict(labels),
                frame.room(total),
                frame.label_class(labels),
                special_of(frame, total),
                idle_timeout_s,
            )
        return self._kinds[name]

    def add(self, machine: Machine, now: float) -> None:
        """A machine became a node."""
        machine.phase, machine.ready_at, machine.idle_since = Phase.READY, now, now
        machine.free = machine.kind.capacity
        self.idle[machine] = None
        self._file(machine)

    def remove(self, machine: Machine) -> None:
        """A node takes no more work."""
        self.idle.pop(machine, None)
        self._unfile(machine)

    def _unfile(self, machine: Machine) -> None:
        del self._by_room[machine.kind.name, machine.free][machine]

    def _file(self, machine: Machine) -> None:
        self._by_room.setdefault((machine.kind.name, machine.free), {})[machine] = None
        machine.view = None

    def start(
        self, machine: Machine, run: int, item: Item, n: int, origin: object, now: float
    ) -> None:
        """Put work on a node."""
        if not machine.runs:
            machine.busy_since = now
            self.idle.pop(machine, None)
        machine.runs[run] = Run(item, n, origin)
        self._change(machine, item, -n)

    def finish(self, machine: Machine, run: int, now: float) -> Run:
        """Take finished work off a node."""
        done = machine.runs.pop(run)
        if not machine.runs:
            machine.idle_since = now
            self.idle[machine] = None
            machine.busy_s += now - machine.busy_since
        if machine.phase is Phase.READY:
            self._change(machine, done.item, done.copies)
        return done

    def _change(self, machine: Machine, item: Item, n: int) -> None:
        self._unfile(machine)
        free = list(machine.free)
        for axis, amount in item.wants:
            free[axis] += amount * n
        machine.free = tuple(free)
        self._file(machine)

    def fit(self, machine: Machine, item: Item, most: int) -> int:
        """How many copies fit on a node now."""
        if not self.frame.admits(item.selector, machine.kind.label_class):
            return 0
        return min(most, copies(machine.free, item))

    def candidates(self, item: Item) -> Iterator[Machine]:
        """Nodes with room for the item: those without scarce resources that it does not want
        first, fuller ones first."""
        rooms = [
            (name, free)
            for (name, free), machines in self._by_room.items()
            if machines
            and all(free[axis] >= amount for axis, amount in item.wants)
            and self.frame.admits(item.selector, self._kinds[name].label_class)
        ]
        unwanted = ~item.special
        rooms.sort(
            key=lambda room: (
                (self._kinds[room[0]].special & unwanted).bit_count(),
                sum(f * w for f, w in zip(room[1], self.frame.weight, strict=True)),
                room,
            )
        )
        for room in rooms:
            yield from list(self._by_room[room])

    def places_for(self, items: Sequence[Item], strategy: Strategy) -> list[Machine] | None:
        """A node for each of a gang's bundles, or None if not all have one."""
        chosen: list[Machine] = []
        room: dict[Machine, Vector] = {}
        for item in items:
            place = self._place_for(item, strategy, chosen, room)
            if place is None:
                return None
            free = room.get(place, place.free)
            room[place] = tuple(f - n for f, n in zip(free, item.need, strict=True))
            chosen.append(place)
        return chosen

    def _place_for(
        self,
        item: Item,
        strategy: Strategy,
        chosen: Sequence[Machine],
        room: Mapping[Machine, Vector],
    ) -> Machine | None:
        again = [m for m in dict.fromkeys(chosen) if self._still_fits(m, item, room)]
        fresh = (m for m in self.candidates(item) if m not in room)
        if strategy is Strategy.STRICT_SPREAD:
            return next(fresh, None)
        if strategy is Strategy.SPREAD:
            return next(fresh, None) or (again[0] if again else None)
        return again[0] if again else next(fresh, None)

    def _still_fits(self, machine: Machine, item: Item, room: Mapping[Machine, Vector]) -> bool:
        admits = self.frame.admits(item.selector, machine.kind.label_class)
        return admits and copies(room[machine], item) > 0

    def view(self, machine: Machine, now: float) -> NodeView:
        """The machine as the planner sees it. Only idle nodes change with time alone."""
        view = machine.view
        if view is None or view.phase is not machine.phase or machine.phase is Phase.READY:
            idle = now - machine.idle_since if not machine.runs else 0.0
            ready = machine.phase is Phase.READY
            view = machine.view = NodeView(
                machine.id,
                machine.kind.name,
                machine.phase,
                machine.is_head,
                machine.kind.total if ready else _UNKNOWN,
                self._available(machine) if ready else _UNKNOWN,
                machine.kind.labels,
                idle if ready else 0.0,
                machine.market,
                machine.zone,
                machine.price,
                throttled=machine.throttled,
            )
        return view

    def _available(self, machine: Machine) -> Resources:
        key = (machine.kind.name, machine.free)
        if key not in self._mappings:
            free = {n: f / UNIT for n, f in zip(self.frame.names, machine.free, strict=True)}
            total = machine.kind.total
            self._mappings[key] = {name: free.get(name, amount) for name, amount in total.items()}
        return self._mappings[key]
