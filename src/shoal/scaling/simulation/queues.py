"""What waits in a simulated cluster, first come first served within each kind."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from shoal.scaling.demand import Demand, Gang, Request, Shape, Strategy
from shoal.scaling.resource_vectors import Item, ResourceSpace
from shoal.scaling.simulation.trace import Arrival
from shoal.scaling.workload import joined


@dataclass(eq=False)
class Waiting:
    """Equal tasks or gangs that arrived together and run equally long."""

    kind: TaskKind | GangKind
    count: int
    arrived: float
    seconds: float


@dataclass(frozen=True)
class TaskKind:
    """Tasks of one shape."""

    shape: Shape
    item: Item


@dataclass(frozen=True)
class GangKind:
    """Gangs with the same bundles and strategy; `items` are to be placed one by one."""

    gang: Gang
    items: tuple[Item, ...]


class Queues:
    """Everything that waits, and the floor that stands."""

    def __init__(self, frame: ResourceSpace) -> None:
        self._frame = frame
        self._tasks: dict[TaskKind, deque[Waiting]] = {}
        self._gangs: dict[GangKind, deque[Waiting]] = {}
        self._counts: dict[TaskKind | GangKind, int] = {}
        self._floor: tuple[Request, ...] = ()

    def arrive(self, arrival: Arrival) -> None:
        """Take in what arrives."""
        if arrival.floor is not None:
            self._floor = (Request(arrival.floor, arrival.count),) if arrival.count else ()
        elif arrival.gang is not None:
            self.add(Waiting(self._gang(arrival.gang), arrival.count, arrival.at, arrival.seconds))
        elif arrival.shape is not None:
            kind = TaskKind(arrival.shape, self._frame.item(arrival.shape, 1))
            self.add(Waiting(kind, arrival.count, arrival.at, arrival.seconds))

    def _gang(self, gang: Gang) -> GangKind:
        shapes = [joined(gang.bundles)] if gang.strategy is Strategy.STRICT_PACK else gang.bundles
        items = sorted((self._frame.item(s, 1) for s in shapes), key=lambda i: i.hardness)
        return GangKind(Gang(tuple(sorted(gang.bundles)), gang.strategy), tuple(items))

    def add(self, waiting: Waiting) -> None:
        """Put something at the end of its queue."""
        if waiting.count <= 0:
            return
        kind = waiting.kind
        if isinstance(kind, TaskKind):
            if kind not in self._tasks:
                self._tasks[kind] = deque()
                by_hardness = sorted(self._tasks.items(), key=lambda entry: entry[0].item.hardness)
                self._tasks = dict(by_hardness)
            self._tasks[kind].append(waiting)
        else:
            self._gangs.setdefault(kind, deque()).append(waiting)
        self._counts[kind] = self._counts.get(kind, 0) + waiting.count

    def take(self, waiting: Waiting, count: int) -> None:
        """Some of the first in its queue have started."""
        waiting.count -= count
        self._counts[waiting.kind] -= count
        if not waiting.count:
            queue = self._queue(waiting.kind)
            queue.popleft()

    def _queue(self, kind: TaskKind | GangKind) -> deque[Waiting]:
        return self._tasks[kind] if isinstance(kind, TaskKind) else self._gangs[kind]

    def tasks(self) -> Iterable[TaskKind]:
        """The kinds of tasks that wait, hardest to place first."""
        return [kind for kind, queue in self._tasks.items() if queue]

    def gangs(self) -> Iterable[GangKind]:
        """The kinds of gangs that wait."""
        return [kind for kind, queue in self._gangs.items() if queue]

    def first(self, kind: TaskKind | GangKind) -> Waiting | None:
        """Who is next in a queue."""
        queue = self._queue(kind)
        return queue[0] if queue else None

    @property
    def total(self) -> int:
        """How many tasks and gangs wait."""
        return sum(self._counts.values())

    def demand(self) -> Demand:
        """What waits, as the planner is told."""
        return Demand(
            tuple(Request(k.shape, self._counts[k]) for k in self.tasks()),
            tuple(Gang(k.gang.bundles, k.gang.strategy, self._counts[k]) for k in self.gangs()),
            self._floor,
        )


def shapes_in(trace: Iterable[Arrival]) -> Iterator[Shape]:
    """Every shape that a trace can lead to."""
    for arrival in trace:
        if arrival.shape is not None:
            yield arrival.shape
        if arrival.floor is not None:
            yield arrival.floor
        if arrival.gang is not None:
            yield from arrival.gang.bundles
            yield joined(arrival.gang.bundles)
