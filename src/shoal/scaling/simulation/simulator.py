"""The virtual clock: events in order, the planner when something has changed."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from shoal.core.node_phase import Phase
from shoal.scaling.demand import Strategy
from shoal.scaling.inputs import ON_THE_WAY, History, LaunchFailure, Offering
from shoal.scaling.offerings import Offerings
from shoal.scaling.planner import plan
from shoal.scaling.resource_vectors import ResourceSpace
from shoal.scaling.scaling_plan import Cause, Plan, PlannedLaunch
from shoal.scaling.simulation.fleet import Fleet, Kind, Machine
from shoal.scaling.simulation.queues import GangKind, Queues, TaskKind, Waiting, shapes_in
from shoal.scaling.simulation.result import Outcome, Sample, percentiles
from shoal.scaling.simulation.trace import Arrival, World
from shoal.spec.cluster_spec import ClusterSpec

# What still waits so long after the last arrival will never run.
_PATIENCE_S = 7 * 86_400.0
# A failed launch is known after this long.
_REFUSED_AFTER_S = 5.0


def simulate(
    spec: ClusterSpec, offers: Sequence[Offering], trace: Iterable[Arrival], world: World
) -> Outcome:
    """Run the trace to its end, and on until the machines it brought are given back."""
    ordered = sorted(trace, key=lambda arrival: arrival.at)
    return _Run(spec, offers, ordered, world).outcome()


class _Run:
    def __init__(
        self, spec: ClusterSpec, offers: Sequence[Offering], trace: Sequence[Arrival], world: World
    ) -> None:
        self._spec = spec
        self._offers = list(offers)
        self._world = world
        self._random = random.Random(world.seed)
        self._trace = trace
        self._shop = Offerings(spec, self._offers, History(), 0.0)
        self._frame = ResourceSpace(shapes_in(trace), self._shop.resources.values())
        self._fleet = Fleet(self._frame)
        self._queues = Queues(self._frame)
        self._machines: dict[str, Machine] = {}
        self._history = History()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()
        self._now = 0.0
        self._next_look: float | None = None
        self._cost = 0.0
        self._ready_s = self._busy_s = 0.0
        self._waits: Counter[float] = Counter()
        self._counts: Counter[str] = Counter()
        self._samples: list[Sample] = []
        self._peak = 0
        self._on_the_way = 0
        self._arrivals_left = len(trace)
        self._is_over = False
        self._price = 0.0

    def outcome(self) -> Outcome:
        """Run everything and add it up."""
        self._start_head()
        if self._trace:
            self._at(self._trace[0].at, lambda: self._arrive(0))
        self._look_soon()
        last = self._trace[-1].at if self._trace else 0.0
        while self._events and not self._is_over:
            time, _, event = heapq.heappop(self._events)
            if time > last + _PATIENCE_S:
                break
            self._now = time
            event()
        return self._summary()

    def _at(self, time: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._number), event))

    def _start_head(self) -> None:
        name = self._spec.head_node_type
        price = self._shop.price[name] if self._shop.is_priced(name) else 0.0
        head = self._machine(name, "head", price)
        head.is_head = True
        self._fleet.add(head, 0.0)

    def _machine(self, node_type: str, id: str, price: float) -> Machine:
        machine = Machine(id, self._kind(node_type), self._now, price)
        self._machines[id] = machine
        self._price += price
        return machine

    def _kind(self, name: str) -> Kind:
        node_type = self._spec.node_types[name]
        return self._fleet.kind(
            name, self._shop.resources[name], node_type.labels, node_type.idle_timeout_s
        )

    def _arrive(self, index: int) -> None:
        arrival = self._trace[index]
        self._queues.arrive(arrival)
        self._arrivals_left -= 1
        if index + 1 < len(self._trace):
            self._at(self._trace[index + 1].at, lambda: self._arrive(index + 1))
        if arrival.shape is not None:
            self._counts["tasks"] += arrival.count
            self._start_anywhere(TaskKind(arrival.shape, self._frame.item(arrival.shape, 1)))
        elif arrival.gang is not None:
            self._counts["tasks"] += arrival.count
            self._start_gangs()
        self._look_soon()

    def _start_anywhere(self, kind: TaskKind) -> None:
        for machine in self._fleet.candidates(kind.item):
            if self._start_on(machine, kind):
                return

    def _start_on(self, machine: Machine, kind: TaskKind) -> bool:
        """Start as many tasks of a kind as fit; whether none of them is left waiting."""
        while waiting := self._queues.first(kind):
            # A queue entry's own count is what may be asked for at once.
            item = self._frame.resized(kind.item, waiting.count)
            n = self._fleet.fit(machine, item, waiting.count)
            if not n:
                return False
            self._begin(machine, waiting, kind, n)
            self._queues.take(waiting, n)
            self._waits[round(self._now - waiting.arrived, 1)] += n
        return True

    def _begin(self, machine: Machine, waiting: Waiting, kind: TaskKind, n: int) -> None:
        run = next(self._number)
        origin = Waiting(kind, n, waiting.arrived, waiting.seconds)
        self._fleet.start(machine, run, kind.item, n, origin, self._now)
        self._at(self._now + waiting.seconds, lambda: self._finish([(machine, run)]))

    def _start_gangs(self) -> None:
        for kind in self._queues.gangs():
            while waiting := self._queues.first(kind):
                strategy = kind.gang.strategy
                if strategy is Strategy.STRICT_PACK:
                    strategy = Strategy.PACK  # one item by now
                places = self._fleet.places_for(kind.items, strategy)
                if places is None:
                    break
                self._begin_gang(places, kind, waiting)
                self._queues.take(waiting, 1)
                self._waits[round(self._now - waiting.arrived, 1)] += 1

    def _begin_gang(self, places: Sequence[Machine], kind: GangKind, waiting: Waiting) -> None:
        runs = []
        origin = Waiting(kind, 1, waiting.arrived, waiting.seconds)
        for machine, item in zip(places, kind.items, strict=True):
            run = next(self._number)
            self._fleet.start(machine, run, item, 1, origin, self._now)
            runs.append((machine, run))
        self._at(self._now + waiting.seconds, lambda: self._finish(runs))

    def _finish(self, runs: Sequence[tuple[Machine, int]]) -> None:
        """Work is done, unless an interruption has ended it before."""
        alive = [(machine, run) for machine, run in runs if run in machine.runs]
        for machine, run in alive:
            self._fleet.finish(machine, run, self._now)
        for machine, _ in alive:
            self._use(machine)
        # Less demand never launches anything. It can only make machines on their way needless.
        if self._on_the_way:
            self._look_soon()

    def _use(self, machine: Machine) -> None:
        """Give a node that has room to what waits."""
        if machine.phase is not Phase.READY:
            return
        if self._queues.gangs():
            self._start_gangs()
        for kind in self._queues.tasks():
            self._start_on(machine, kind)
        if not machine.runs and not machine.is_head:
            self._look_at(self._now + machine.kind.idle_timeout_s)

    def _launch(self, launch: PlannedLaunch) -> None:
        for _ in range(launch.count):
            self._counts["launches"] += 1
            if self._random.random() < self._world.failure_rate:
                self._at(self._now + _REFUSED_AFTER_S, lambda: self._refused(launch))
                continue
            price = launch.price_per_hour or 0.0
            id = f"n{next(self._number):012d}"
            machine = self._machine(launch.node_type, id, price)
            machine.market, machine.zone = launch.market, launch.zone
            machine.throttled = launch.throttled
            self._on_the_way += 1
            spread = self._world.boot_spread * self._random.uniform(-1.0, 1.0)
            boot = max(0.0, self._world.boot_s * (1.0 + spread))
            self._at(self._now + boot, partial(self._ready, machine))
        if launch.count:
            self._history = self._history.after_success(
                launch.node_type, launch.market, launch.zone
            )

    def _refused(self, launch: PlannedLaunch) -> None:
        self._counts["failures"] += 1
        failure = LaunchFailure(launch.node_type, self._now, "capacity", launch.market, launch.zone)
        self._history = self._history.after(failure)
        self._look_soon()

    def _ready(self, machine: Machine) -> None:
        if machine.phase not in ON_THE_WAY:
            return
        self._on_the_way -= 1
        self._fleet.add(machine, self._now)
        if machine.market == "spot" and self._world.interruptions_per_hour > 0:
            life = self._random.expovariate(self._world.interruptions_per_hour / 3600.0)
            self._at(self._now + life, lambda: self._interrupt(machine))
        self._use(machine)
        self._look_soon()

    def _interrupt(self, machine: Machine) -> None:
        """A spot machine is taken away, and what ran there starts over."""
        if machine.phase is not Phase.READY:
            return
        self._counts["interruptions"] += 1
        lost: dict[int, Waiting] = {}
        for other in [m for m in self._machines.values() if m.runs]:
            for run, work in list(other.runs.items()):
                origin = work.origin
                assert isinstance(origin, Waiting)
                gang_here = any(w.origin is origin for w in machine.runs.values())
                if other is machine or (isinstance(origin.kind, GangKind) and gang_here):
                    lost[id(origin)] = origin
                    if other is not machine:
                        self._fleet.finish(other, run, self._now)
        for run in list(machine.runs):
            self._fleet.finish(machine, run, self._now)
        self._end(machine)
        for origin in lost.values():
            self._queues.add(Waiting(origin.kind, origin.count, self._now, origin.seconds))
        for kind in self._queues.tasks():
            self._start_anywhere(kind)
        self._start_gangs()
        self._look_soon()

    def _drain(self, machine: Machine) -> None:
        """A node that is busy refuses."""
        if machine.phase is Phase.READY and not machine.runs:
            self._fleet.remove(machine)
            machine.phase = Phase.DRAINING
            self._at(self._now + self._world.drain_s, lambda: self._end(machine))

    def _end(self, machine: Machine) -> None:
        if machine.phase is Phase.GONE:
            return
        if machine.phase is Phase.READY:
            self._fleet.remove(machine)
        self._on_the_way -= machine.phase in ON_THE_WAY
        self._bill(machine)
        machine.phase = Phase.GONE
        del self._machines[machine.id]
        self._price -= machine.price
        if self._queues.total:
            self._look_soon()

    def _bill(self, machine: Machine) -> None:
        self._cost += machine.price * (self._now - machine.requested) / 3600.0
        if machine.phase not in ON_THE_WAY and not machine.is_head:
            self._ready_s += self._now - machine.ready_at
            running = self._now - machine.busy_since if machine.runs else 0.0
            self._busy_s += machine.busy_s + running

    def _look_soon(self) -> None:
        self._look_at(self._now)

    def _look_at(self, time: float) -> None:
        """Have the planner look at the next of its regular moments after a time."""
        interval = self._world.interval_s
        moment = -(-time // interval) * interval
        if self._next_look is None or moment < self._next_look or self._next_look < self._now:
            self._next_look = moment
            self._at(moment, lambda: self._look(moment))

    def _look(self, moment: float) -> None:
        if self._next_look != moment:
            return
        self._next_look = None
        views = [
            m.view if m.runs and m.view is not None else self._fleet.view(m, self._now)
            for m in self._machines.values()
        ]
        decided = plan(
            self._spec, views, self._queues.demand(), self._history, self._now, self._offers
        )
        self._counts["plans"] += 1
        self._history = decided.history
        for cancel in decided.cancels:
            self._end(self._machines[cancel.node_id])
        for drain in decided.drains:
            self._drain(self._machines[drain.node_id])
        for launch in decided.launches:
            self._launch(launch)
        self._sample()
        self._is_over = self._is_settled(decided)
        self._look_again(decided)

    def _is_settled(self, decided: Plan) -> bool:
        """Whether all work is done and every machine that only it needed is gone."""
        idle = self._fleet.idle
        return (
            decided.is_empty
            and not self._arrivals_left
            and not self._queues.total
            and not self._on_the_way
            and len(idle) == len(self._machines)
            and all(m.is_head or self._now - m.idle_since >= m.kind.idle_timeout_s for m in idle)
        )

    def _look_again(self, decided: Plan) -> None:
        """Look again when time alone will change the answer."""
        interval = self._world.interval_s
        if decided.history.unneeded_since or decided.drains or decided.cancels:
            self._look_at(self._now + interval)
        for unmet in decided.unmet:
            if unmet.reason.cause is Cause.CAPACITY:
                self._look_at(self._now + max(interval, unmet.reason.numbers["retry_in_s"]))
        idle = (m.idle_since + m.kind.idle_timeout_s for m in self._fleet.idle if not m.is_head)
        later = [time for time in idle if time > self._now]
        if later:
            self._look_at(min(later))

    def _sample(self) -> None:
        workers = len(self._machines) - 1  # the head
        self._peak = max(self._peak, workers)
        ready, waiting = workers - self._on_the_way, self._queues.total
        self._samples.append(Sample(self._now, ready, self._on_the_way, waiting, self._price))

    def _summary(self) -> Outcome:
        for machine in list(self._machines.values()):
            self._bill(machine)
        p50, p90, p99, longest = percentiles(self._waits, (0.5, 0.9, 0.99, 1.0))
        types = [
            self._spec.head_node_type,
            *(t for t, n in self._spec.node_types.items() if n.max_workers),
        ]
        return Outcome(
            cost=self._cost,
            priced=all(self._shop.is_priced(t) for t in types),
            seconds=self._now,
            tasks=self._counts["tasks"],
            unfinished=self._queues.total,
            wait_p50=p50,
            wait_p90=p90,
            wait_p99=p99,
            wait_max=longest,
            peak_nodes=self._peak,
            node_hours=self._ready_s / 3600.0,
            busy_share=self._busy_s / self._ready_s if self._ready_s else 0.0,
            launches=self._counts["launches"],
            failures=self._counts["failures"],
            interruptions=self._counts["interruptions"],
            plans=self._counts["plans"],
            samples=tuple(self._samples),
        )
