"""Waiting work in a simulated cluster: one first-in, first-out queue per class of equal work."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from shoal.scaling.demand import Demand, Gang, Request, Shape, Strategy
from shoal.scaling.resource_vectors import Item, ResourceSpace
from shoal.scaling.simulation.trace import Arrival
from shoal.scaling.workload import merged_bundles


@dataclass(eq=False)
class QueueEntry:
    """Equal tasks or gangs that arrived together and run for the same time."""

    work_class: TaskClass | GangClass
    count: int
    arrived: float
    seconds: float


@dataclass(frozen=True)
class TaskClass:
    """Tasks of one shape."""

    shape: Shape
    item: Item


@dataclass(frozen=True)
class GangClass:
    """Gangs with equal bundles and strategy; `items` are placed one by one."""

    gang: Gang
    items: tuple[Item, ...]


class Queues:
    """All waiting work, and the current floor."""

    def __init__(self, space: ResourceSpace) -> None:
        self._space = space
        self._tasks: dict[TaskClass, deque[QueueEntry]] = {}
        self._gangs: dict[GangClass, deque[QueueEntry]] = {}
        self._counts: dict[TaskClass | GangClass, int] = {}
        self._floor: tuple[Request, ...] = ()

    def add_arrival(self, arrival: Arrival) -> None:
        """Queue what arrives, or set the floor."""
        if arrival.floor is not None:
            self._floor = (Request(arrival.floor, arrival.count),) if arrival.count else ()
        elif arrival.gang is not None:
            self.add(
                QueueEntry(self._gang(arrival.gang), arrival.count, arrival.at, arrival.seconds)
            )
        elif arrival.shape is not None:
            work_class = TaskClass(arrival.shape, self._space.item(arrival.shape, 1))
            self.add(QueueEntry(work_class, arrival.count, arrival.at, arrival.seconds))

    def _gang(self, gang: Gang) -> GangClass:
        shapes = (
            [merged_bundles(gang.bundles)]
            if gang.strategy is Strategy.STRICT_PACK
            else gang.bundles
        )
        items = sorted((self._space.item(s, 1) for s in shapes), key=lambda i: i.hardness)
        return GangClass(Gang(tuple(sorted(gang.bundles)), gang.strategy), tuple(items))

    def add(self, entry: QueueEntry) -> None:
        """Append an entry to its queue."""
        if entry.count <= 0:
            return
        work_class = entry.work_class
        if isinstance(work_class, TaskClass):
            if work_class not in self._tasks:
                self._tasks[work_class] = deque()
                by_hardness = sorted(self._tasks.items(), key=lambda pair: pair[0].item.hardness)
                self._tasks = dict(by_hardness)
            self._tasks[work_class].append(entry)
        else:
            self._gangs.setdefault(work_class, deque()).append(entry)
        self._counts[work_class] = self._counts.get(work_class, 0) + entry.count

    def take(self, entry: QueueEntry, count: int) -> None:
        """Some of the first entry of a queue have started."""
        entry.count -= count
        self._counts[entry.work_class] -= count
        if not entry.count:
            self._queue(entry.work_class).popleft()

    def _queue(self, work_class: TaskClass | GangClass) -> deque[QueueEntry]:
        if isinstance(work_class, TaskClass):
            return self._tasks[work_class]
        return self._gangs[work_class]

    def tasks(self) -> Iterable[TaskClass]:
        """The classes of tasks that wait, hardest to place first."""
        return [work_class for work_class, queue in self._tasks.items() if queue]

    def gangs(self) -> Iterable[GangClass]:
        """The classes of gangs that wait."""
        return [work_class for work_class, queue in self._gangs.items() if queue]

    def first(self, work_class: TaskClass | GangClass) -> QueueEntry | None:
        """The first entry of a queue."""
        queue = self._queue(work_class)
        return queue[0] if queue else None

    @property
    def total(self) -> int:
        """How many tasks and gangs wait."""
        return sum(self._counts.values())

    def demand(self) -> Demand:
        """What waits, as the planner's input."""
        return Demand(
            tuple(Request(t.shape, self._counts[t]) for t in self.tasks()),
            tuple(Gang(g.gang.bundles, g.gang.strategy, self._counts[g]) for g in self.gangs()),
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
            yield merged_bundles(arrival.gang.bundles)
