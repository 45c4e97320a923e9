"""A discrete-event simulation: events in time order, and the planner whenever something changed."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from shoal.core.node_phase import Phase
from shoal.scaling.demand import Strategy
from shoal.scaling.inputs import LAUNCHING_PHASES, History, LaunchFailure, Offering
from shoal.scaling.offerings import Offerings
from shoal.scaling.planner import plan
from shoal.scaling.resource_vectors import ResourceSpace
from shoal.scaling.scaling_plan import Cause, Plan, PlannedLaunch
from shoal.scaling.simulation.fleet import Fleet, SimulatedNode, SimulatedNodeType
from shoal.scaling.simulation.queues import GangClass, QueueEntry, Queues, TaskClass, shapes_in
from shoal.scaling.simulation.result import Sample, SimulationResult, percentiles
from shoal.scaling.simulation.trace import Arrival, SimulationSettings
from shoal.spec.cluster_spec import ClusterSpec

# Work that still waits this long after the last arrival will never run.
_MAX_WAIT_S = 7 * 86_400.0
# How long a launch takes to fail.
_LAUNCH_FAILURE_S = 5.0


def simulate(
    spec: ClusterSpec,
    offerings: Sequence[Offering],
    trace: Iterable[Arrival],
    settings: SimulationSettings,
) -> SimulationResult:
    """Run the trace to its end, and on until the nodes that it needed are terminated."""
    ordered = sorted(trace, key=lambda arrival: arrival.at)
    return _Simulation(spec, offerings, ordered, settings).run()


class _Simulation:
    """One run: the virtual clock, the event queue, and the running totals."""

    def __init__(
        self,
        spec: ClusterSpec,
        offerings: Sequence[Offering],
        trace: Sequence[Arrival],
        settings: SimulationSettings,
    ) -> None:
        self._spec = spec
        self._offering_list = list(offerings)
        self._settings = settings
        self._random = random.Random(settings.seed)
        boots = settings.measured_boots_s
        self._measured_boots = itertools.cycle(boots) if boots else None
        self._trace = trace
        self._offerings = Offerings(spec, self._offering_list, History(), 0.0)
        self._space = ResourceSpace(shapes_in(trace), self._offerings.resources.values())
        self._fleet = Fleet(self._space)
        self._queues = Queues(self._space)
        self._nodes: dict[str, SimulatedNode] = {}
        self._history = History()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()
        self._now = 0.0
        self._next_plan: float | None = None
        self._earliest_plan = 0.0
        self._cost = 0.0
        self._ready_s = self._busy_s = 0.0
        self._waits: Counter[float] = Counter()
        self._counts: Counter[str] = Counter()
        self._samples: list[Sample] = []
        self._peak = 0
        self._launching = 0
        self._arrivals_left = len(trace)
        self._is_finished = False
        self._price = 0.0

    def run(self) -> SimulationResult:
        """Process all events and return the totals."""
        self._start_head()
        if self._trace:
            self._schedule(self._trace[0].at, lambda: self._arrive(0))
        self._plan_soon()
        last = self._trace[-1].at if self._trace else 0.0
        while self._events and not self._is_finished:
            time, _, event = heapq.heappop(self._events)
            if time > last + _MAX_WAIT_S:
                break
            self._now = time
            event()
        return self._summary()

    def _schedule(self, time: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._number), event))

    def _start_head(self) -> None:
        name = self._spec.head_node_type
        price = self._offerings.price[name] if self._offerings.is_priced(name) else 0.0
        head = self._add_node(name, "head", price)
        head.is_head = True
        self._fleet.add(head, 0.0)

    def _add_node(self, node_type: str, id: str, price: float) -> SimulatedNode:
        node = SimulatedNode(id, self._node_type(node_type), self._now, price)
        self._nodes[id] = node
        self._price += price
        return node

    def _node_type(self, name: str) -> SimulatedNodeType:
        node_type = self._spec.node_types[name]
        return self._fleet.node_type(
            name, self._offerings.resources[name], node_type.labels, node_type.idle_timeout_s
        )

    def _arrive(self, index: int) -> None:
        arrival = self._trace[index]
        self._queues.add_arrival(arrival)
        self._arrivals_left -= 1
        if index + 1 < len(self._trace):
            self._schedule(self._trace[index + 1].at, lambda: self._arrive(index + 1))
        if arrival.shape is not None:
            self._counts["tasks"] += arrival.count
            self._start_anywhere(TaskClass(arrival.shape, self._space.item(arrival.shape, 1)))
        elif arrival.gang is not None:
            self._counts["tasks"] += arrival.count
            self._start_gangs()
        self._plan_soon()

    def _start_anywhere(self, work_class: TaskClass) -> None:
        for node in self._fleet.candidates(work_class.item):
            if self._start_tasks_on(node, work_class):
                return

    def _start_tasks_on(self, node: SimulatedNode, work_class: TaskClass) -> bool:
        """Start as many tasks of a class as fit. Returns whether none of them is left waiting."""
        while entry := self._queues.first(work_class):
            # The number of copies that fit is limited by the item's count.
            item = self._space.resized(work_class.item, entry.count)
            count = self._fleet.copies_that_fit(node, item, entry.count)
            if not count:
                return False
            worker_start_s = self._settings.worker_start_s
            slow = self._fleet.start_workers(node, count) if worker_start_s else 0
            self._start_tasks(node, entry, work_class, count - slow, 0.0)
            self._start_tasks(node, entry, work_class, slow, worker_start_s)
            self._queues.take(entry, count)
        return True

    def _start_tasks(
        self,
        node: SimulatedNode,
        entry: QueueEntry,
        work_class: TaskClass,
        count: int,
        delay_s: float,
    ) -> None:
        """Start tasks, which hold their resources from now on and run after a delay."""
        if not count:
            return
        run = next(self._number)
        origin = QueueEntry(work_class, count, entry.arrived, entry.seconds)
        self._fleet.start(node, run, work_class.item, count, origin, self._now)
        self._schedule(self._now + delay_s + entry.seconds, lambda: self._finish([(node, run)]))
        self._waits[round(self._now + delay_s - entry.arrived, 1)] += count

    def _start_gangs(self) -> None:
        for work_class in self._queues.gangs():
            while entry := self._queues.first(work_class):
                strategy = work_class.gang.strategy
                if strategy is Strategy.STRICT_PACK:
                    strategy = Strategy.PACK  # its bundles are one item
                nodes = self._fleet.nodes_for_gang(work_class.items, strategy)
                if nodes is None:
                    break
                self._start_gang(nodes, work_class, entry)
                self._queues.take(entry, 1)
                self._waits[round(self._now - entry.arrived, 1)] += 1

    def _start_gang(
        self, nodes: Sequence[SimulatedNode], work_class: GangClass, entry: QueueEntry
    ) -> None:
        running = []
        origin = QueueEntry(work_class, 1, entry.arrived, entry.seconds)
        for node, item in zip(nodes, work_class.items, strict=True):
            run = next(self._number)
            self._fleet.start(node, run, item, 1, origin, self._now)
            running.append((node, run))
        self._schedule(self._now + entry.seconds, lambda: self._finish(running))

    def _finish(self, running: Sequence[tuple[SimulatedNode, int]]) -> None:
        """Finish work, unless an interruption ended it before."""
        still_running = [(node, run) for node, run in running if run in node.running]
        for node, run in still_running:
            self._fleet.finish(node, run, self._now)
        for node, _ in still_running:
            self._assign_work(node)
        # Less demand never launches anything. It can only make launching nodes unneeded.
        if self._launching:
            self._plan_soon()

    def _assign_work(self, node: SimulatedNode) -> None:
        """Start waiting work on a node with free resources."""
        if node.phase is not Phase.READY:
            return
        if self._queues.gangs():
            self._start_gangs()
        for work_class in self._queues.tasks():
            self._start_tasks_on(node, work_class)
        if not node.running and not node.is_head:
            self._plan_at(self._seen(self._now + node.node_type.idle_timeout_s))

    def _launch(self, launch: PlannedLaunch) -> None:
        for _ in range(launch.count):
            self._counts["launches"] += 1
            if self._random.random() < self._settings.failure_rate:
                self._schedule(self._now + _LAUNCH_FAILURE_S, lambda: self._launch_failed(launch))
                continue
            price = launch.price_per_hour or 0.0
            id = f"n{next(self._number):012d}"
            node = self._add_node(launch.node_type, id, price)
            node.market, node.zone = launch.market, launch.zone
            node.throttled = launch.throttled
            self._launching += 1
            self._schedule(self._now + self._boot_s(), partial(self._ready, node))
        if launch.count:
            self._history = self._history.with_success(launch.node_type, launch.market, launch.zone)

    def _boot_s(self) -> float:
        if self._measured_boots is not None:
            return next(self._measured_boots)
        jitter = self._settings.boot_jitter * self._random.uniform(-1.0, 1.0)
        return max(0.0, self._settings.boot_s * (1.0 + jitter))

    def _launch_failed(self, launch: PlannedLaunch) -> None:
        self._counts["failures"] += 1
        failure = LaunchFailure(launch.node_type, self._now, "capacity", launch.market, launch.zone)
        self._history = self._history.with_failure(failure)
        self._plan_soon()

    def _ready(self, node: SimulatedNode) -> None:
        if node.phase not in LAUNCHING_PHASES:
            return
        self._launching -= 1
        self._fleet.add(node, self._now)
        if node.market == "spot" and self._settings.interruptions_per_hour > 0:
            lifetime_s = self._random.expovariate(self._settings.interruptions_per_hour / 3600.0)
            self._schedule(self._now + lifetime_s, lambda: self._interrupt(node))
        self._assign_work(node)
        self._plan_soon()

    def _interrupt(self, node: SimulatedNode) -> None:
        """A spot instance is interrupted; what ran on it starts over."""
        if node.phase is not Phase.READY:
            return
        self._counts["interruptions"] += 1
        interrupted: dict[int, QueueEntry] = {}
        for other in [n for n in self._nodes.values() if n.running]:
            for run, work in list(other.running.items()):
                origin = work.origin
                assert isinstance(origin, QueueEntry)
                shares_gang = any(w.origin is origin for w in node.running.values())
                if other is node or (isinstance(origin.work_class, GangClass) and shares_gang):
                    interrupted[id(origin)] = origin
                    if other is not node:
                        self._fleet.finish(other, run, self._now)
        for run in list(node.running):
            self._fleet.finish(node, run, self._now)
        self._terminate(node)
        for origin in interrupted.values():
            self._queues.add(QueueEntry(origin.work_class, origin.count, self._now, origin.seconds))
        for work_class in self._queues.tasks():
            self._start_anywhere(work_class)
        self._start_gangs()
        self._plan_soon()

    def _drain(self, node: SimulatedNode) -> None:
        """Drain a node, unless it is busy."""
        if node.phase is Phase.READY and not node.running:
            self._fleet.remove(node)
            node.phase = Phase.DRAINING
            self._schedule(self._now + self._settings.drain_s, lambda: self._terminate(node))

    def _terminate(self, node: SimulatedNode) -> None:
        if node.phase is Phase.GONE:
            return
        if node.phase is Phase.READY:
            self._fleet.remove(node)
        self._launching -= node.phase in LAUNCHING_PHASES
        self._charge(node)
        node.phase = Phase.GONE
        del self._nodes[node.id]
        self._price -= node.price
        if self._queues.total:
            self._plan_soon()

    def _charge(self, node: SimulatedNode) -> None:
        self._cost += node.price * (self._now - node.requested_at) / 3600.0
        if node.phase not in LAUNCHING_PHASES and not node.is_head:
            self._ready_s += self._now - node.ready_at
            current_s = self._now - node.busy_since if node.running else 0.0
            self._busy_s += node.busy_s + current_s

    def _plan_soon(self) -> None:
        self._plan_at(self._seen(self._now))

    def _seen(self, time: float) -> float:
        """When a plan can see what happens at a time."""
        return time + self._settings.reaction_s

    def _plan_at(self, time: float) -> None:
        """Run the planner at this time, or as soon after its last run as it runs again."""
        plan_time = max(time, self._earliest_plan)
        if self._next_plan is None or plan_time < self._next_plan or self._next_plan < self._now:
            self._next_plan = plan_time
            self._schedule(plan_time, lambda: self._plan(plan_time))

    def _plan(self, plan_time: float) -> None:
        if self._next_plan != plan_time:
            return
        self._next_plan = None
        self._earliest_plan = self._now + self._settings.interval_s
        views = [
            n.view if n.running and n.view is not None else self._fleet.view(n, self._now)
            for n in self._nodes.values()
        ]
        decided = plan(
            self._spec, views, self._queues.demand(), self._history, self._now, self._offering_list
        )
        self._counts["plans"] += 1
        self._history = decided.history
        for cancel in decided.cancels:
            self._terminate(self._nodes[cancel.node_id])
        for drain in decided.drains:
            self._drain(self._nodes[drain.node_id])
        for launch in decided.launches:
            self._launch(launch)
        self._sample()
        self._is_finished = self._is_settled(decided)
        self._schedule_next_plan(decided)

    def _is_settled(self, decided: Plan) -> bool:
        """Whether all work is done and every node that only it needed is gone."""
        idle = self._fleet.idle
        return (
            decided.is_empty
            and not self._arrivals_left
            and not self._queues.total
            and not self._launching
            and len(idle) == len(self._nodes)
            and all(
                n.is_head or self._now - n.idle_since >= n.node_type.idle_timeout_s for n in idle
            )
        )

    def _schedule_next_plan(self, decided: Plan) -> None:
        """Plan again when time alone will change the result."""
        interval = self._settings.interval_s
        if decided.history.unneeded_since or decided.drains or decided.cancels:
            self._plan_at(self._now + interval)
        for unmet in decided.unmet:
            if unmet.reason.cause is Cause.CAPACITY:
                self._plan_at(self._now + max(interval, unmet.reason.numbers["retry_in_s"]))
        idle = (
            n.idle_since + n.node_type.idle_timeout_s for n in self._fleet.idle if not n.is_head
        )
        idle_deadlines = [time for time in map(self._seen, idle) if time > self._now]
        if idle_deadlines:
            self._plan_at(min(idle_deadlines))

    def _sample(self) -> None:
        workers = len(self._nodes) - 1  # the head
        self._peak = max(self._peak, workers)
        ready, waiting = workers - self._launching, self._queues.total
        self._samples.append(Sample(self._now, ready, self._launching, waiting, self._price))

    def _summary(self) -> SimulationResult:
        for node in list(self._nodes.values()):
            self._charge(node)
        p50, p90, p95, p99, longest = percentiles(self._waits, (0.5, 0.9, 0.95, 0.99, 1.0))
        types = [
            self._spec.head_node_type,
            *(t for t, n in self._spec.node_types.items() if n.max_workers),
        ]
        return SimulationResult(
            cost=self._cost,
            priced=all(self._offerings.is_priced(t) for t in types),
            seconds=self._now,
            tasks=self._counts["tasks"],
            unfinished=self._queues.total,
            wait_p50=p50,
            wait_p90=p90,
            wait_p95=p95,
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
