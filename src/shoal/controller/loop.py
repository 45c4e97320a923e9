"""The loop: observe, reconcile, plan, execute, publish. An iteration never waits for a machine:
slow work runs as a task of the executor, and what cannot be observed now is used later."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from shoal.catalog import offerings_for
from shoal.controller import controller_config, heartbeat, paths, status_file
from shoal.controller.autostop import Autostop, GcsActivity
from shoal.controller.controller_config import ControllerConfig
from shoal.controller.executor import ActionExecutor, GcsDrainer
from shoal.controller.head_monitor import HeadMonitor
from shoal.controller.interruption import Interruption, apply_interruption, describe
from shoal.controller.journal import Journal
from shoal.controller.lifecycle import Node
from shoal.controller.node_manager import NodeManager
from shoal.controller.observer import GcsReader, Observer
from shoal.controller.planner_input import ClusterPlanner, OfferingCache
from shoal.controller.reconcile import Observation, reconcile
from shoal.controller.state import Action, ConfigApplied, ControllerState, Decision, NodeUpdated
from shoal.controller.status_publisher import GcsReporter, Metrics, StatusPublisher
from shoal.core.clock import Clock
from shoal.core.logs import suppress_and_log
from shoal.core.node_phase import Role
from shoal.providers.model import Instance, State
from shoal.ray_runtime.gcs_client import GcsReading
from shoal.scaling import Plan
from shoal.spec.hashes import is_outdated

_log = logging.getLogger(__name__)

# Pause between iterations while something changes. While nothing does, a pause of this many times
# the length of an iteration bounds the CPU use of an idle cluster's controller: well under 1 % of a
# core for hundreds of nodes, 7 % for ten thousand.
_ACTIVE_PAUSE_SECONDS = 0.4
_SHORT_PAUSE_FACTOR, _MAX_SHORT_PAUSE_SECONDS = 120.0, 1.0
_LONG_PAUSE_FACTOR, _MAX_LONG_PAUSE_SECONDS = 15.0, 5.0
# How many kinds of unmet demand are recorded one by one.
_MAX_UNMET_DECISIONS = 20
_MAX_ANOMALIES = 20


class Gcs(GcsReader, GcsDrainer, GcsActivity, GcsReporter, Protocol):
    """Ray's GCS. Calls block."""


@dataclass(frozen=True)
class Dependencies:
    """What the controller works with; a test brings fakes."""

    gcs: Gcs
    make_node_manager: Callable[[ControllerConfig], NodeManager]
    clock: Clock
    metrics: Metrics | None = None


class Controller:
    """Sizes and repairs one cluster. Three things are kept apart, as in `ActionExecutor`:

    planned:   `_plan`, what the planner wants now; recomputed in every iteration
    requested: `state`, what the journal says was decided and done; survives a crash
    observed:  `Observer`, what the provider and Ray report; may be late, incomplete or absent

    `_config` is the config in force and `_stamp` identifies its file; `_iterated_at` is when the
    loop last completed an iteration. `run` returns when the config is removed or the cluster is
    shut down.
    """

    def __init__(
        self, directory: Path, config: ControllerConfig, dependencies: Dependencies
    ) -> None:
        gcs, clock = dependencies.gcs, dependencies.clock
        self._directory = directory
        self._config = config
        self._stamp = controller_config.stamp(directory)
        self._make_node_manager = dependencies.make_node_manager
        self._clock = clock
        self._journal = Journal(directory / paths.JOURNAL)
        self._observer = Observer(
            gcs, clock, lambda why: self._decide_once("anomaly", "instance list", why)
        )
        self._executor = ActionExecutor(
            self._make_node_manager(config),
            gcs,
            self._journal,
            clock,
            directory / paths.BOOTSTRAP_LOGS,
        )
        self._head_monitor = HeadMonitor(self._executor, self._journal, clock)
        self._planner = ClusterPlanner(self._journal, offerings_for(config.spec))
        self._offering_cache = OfferingCache(clock)
        cluster = config.spec.cluster_name
        self._autostop = Autostop(
            self._executor, gcs, clock, lambda action, why: self._decide_once(action, cluster, why)
        )
        self._publisher = StatusPublisher(
            directory, self._journal, gcs, clock, dependencies.metrics
        )
        self._plan = Plan()
        self._iterated_at = float("-inf")
        self._loop_seconds = 0.0
        if damaged := self._journal.unreadable:
            why = f"skipped {damaged} damaged lines; the provider's instance list replaces them"
            self._decide_once("anomaly", "journal", why)
        if self._stamp is not None and self._stamp != self.state.applied_config.stamp:
            self._record_config(self._stamp, config)

    @property
    def state(self) -> ControllerState:
        return self._journal.state

    @property
    def is_busy(self) -> bool:
        """Whether any task is running."""
        return bool(self._executor.busy or self._head_monitor.is_busy)

    async def run(self) -> None:
        """Iterate until the config is removed; a shutdown that has begun is finished."""
        self._heartbeat()
        try:
            while self.should_run() and not await self.run_once():
                self._heartbeat()
                await self._pause()
        finally:
            await self.close()

    async def close(self) -> None:
        """Cancel everything that is running; the journal knows it."""
        self._observer.close()
        self._offering_cache.reset()
        self._autostop.close()
        await self._head_monitor.close()
        await self._executor.close()
        self._journal.close()

    async def run_once(self) -> bool:
        """Observe, reconcile, plan, execute and publish once. Returns whether that was the last
        iteration, because the cluster is shut down."""
        if self._autostop.has_begun and not self._should_resume():
            return await self._autostop.stop(self._config)
        began = self._clock.monotonic()
        instances, reading = await self._observe()
        self._reconcile(instances, reading)
        self._take_drain_requests()
        self._head_monitor.check(reading, self._executor.instances)
        if reading is not None and self._observer.has_listed:
            self._resume_launches()
            if await self._autostop.is_due(self._config, reading, self.state):
                return await self._autostop.stop(self._config)
            self._plan = await self._make_plan(reading)
            self._execute(self._plan, reading)
        await self._publish(reading)
        self._loop_seconds = self._clock.monotonic() - began
        return False

    # The agent server calls these two.

    def lease(self, role: Role) -> float | None:
        """For how long a node may run on without hearing from the controller; see
        `agent_server.Handler`."""
        if self._clock.monotonic() - self._iterated_at > heartbeat.STALLED_SECONDS:
            return None
        return self._config.spec.shoal.lease_for(role)

    def on_interruption(self, node_id: str, notice: Interruption) -> bool:
        """Drain a node that its provider will terminate, and wake the loop, which replaces it.
        Returns False while the node is unknown."""
        node = self.state.nodes.get(node_id)
        if node is None:
            return False
        if node.role == "head":
            self._decide_once("interruption", node.name, describe(notice), "interruption")
        after = apply_interruption(node, notice, self._clock.now())
        if after is not None:
            decision = self._decision("drain", node.name, after.ended, "interruption")
            self._journal.record(NodeUpdated(after), decision)
            if after.is_pending:
                self._executor.terminate(after, after.ended)
            else:
                self._drain_interrupted(after)
            self._executor.wake()
        return True

    # observe

    async def _observe(self) -> tuple[Sequence[Instance] | None, GcsReading | None]:
        executor = self._executor
        instances = await self._observer.list_instances(executor.node_manager)
        if instances is not None:
            known = {id: i for id, i in executor.instances.items() if id in self.state.nodes}
            executor.instances = {**known, **{i.id: i for i in instances}}
        return instances, await self._observer.read_gcs()

    # reconcile

    def _reconcile(self, instances: Sequence[Instance] | None, reading: GcsReading | None) -> None:
        head = self._head_monitor.instance(self._executor.instances)
        busy = self._executor.busy
        if head is not None and self._head_monitor.is_busy:
            busy.add(head.id)
        observation = Observation(
            now=self._clock.now(),
            instances=instances,
            listed_at=self._observer.listed_at,
            ray=None if reading is None else reading.nodes,
            busy=busy,
        )
        outcome = reconcile(self.state, observation)
        if outcome.changed:
            self._journal.record(*(NodeUpdated(node) for node in outcome.changed.values()))
        if instances is not None:
            self._observer.has_anomalies = bool(outcome.anomalies)
        if outcome.anomalies:
            why = "; ".join(outcome.anomalies[:_MAX_ANOMALIES])
            self._decide_once("anomaly", "observation", why)
        for id, action in outcome.actions.items():
            node, instance = self.state.nodes[id], self._executor.instances.get(id)
            if action == "terminate":
                self._executor.terminate(node, node.ended or node.detail)
            elif action == "drain":
                self._drain_interrupted(node)
            elif instance is not None and head is not None:
                if id in outcome.restarted:
                    self._journal.record(self._decision("restart", node.name, node.detail))
                self._executor.bootstrap(node, instance, head, restart=True)

    def _drain_interrupted(self, node: Node) -> None:
        """Drain an interrupted node in Ray; while the GCS is unreachable, a later iteration does
        it."""
        reading = self._observer.reading
        ray = reading.nodes.get(node.id) if reading is not None else None
        if ray is not None:
            self._executor.drain_for_interruption(node, ray.ray_id)

    def _take_drain_requests(self) -> None:
        """Drain the nodes for which `shoal drain` left a file."""
        for path in (self._directory / paths.DRAIN_REQUESTS).glob("*"):
            with suppress_and_log(_log, f"delete {path}", OSError):
                path.unlink()
                if not self.on_interruption(path.name, Interruption("drain")):
                    _log.info("cannot drain %s: it is not a node", path.name)

    def _resume_launches(self) -> None:
        """Repeat launches that a previous controller began and whose result it did not record."""
        head = self._head_monitor.instance(self._executor.instances)
        for token, intent in list(self.state.intents.items()):
            if token not in self._executor.busy and head is not None:
                self._executor.resume_launch(intent, head)

    # plan

    async def _make_plan(self, reading: GcsReading) -> Plan:
        offerings = self._offering_cache.poll(self._executor.node_manager)
        if offerings is not None:
            self._planner.offerings = offerings
        # Only consolidation moves work, so only it needs to know which work cannot move.
        if self._config.spec.shoal.consolidate and self._observer.is_pinned_due():
            self._planner.pinned = await self._observer.read_pinned()
        self._planner.outdated = {
            id
            for id, instance in self._executor.instances.items()
            if is_outdated(self._config.spec, instance.node_type, instance.launch_hash)
        }
        instances = self._executor.instances.values()
        return self._planner.plan(
            self._config.spec,
            reading,
            self._clock.now(),
            hosts=self._executor.node_manager.worker_hosts,
            unreachable={i.id for i in instances if i.state is State.UNREACHABLE},
        )

    # execute

    def _execute(self, plan: Plan, reading: GcsReading) -> None:
        head = self._head_monitor.instance(self._executor.instances)
        if head is None:
            return
        if plan.launches and self._journal.ensure_writable():
            for launch in plan.launches:
                self._executor.launch(launch, head)
        for cancel in plan.cancels:
            if cancel.node_id in self.state.nodes:
                self._executor.cancel(cancel)
        for drain in plan.drains:
            if drain.node_id not in self._executor.busy:
                self._executor.drain(drain, reading.nodes[drain.node_id].ray_id)
        self._record_unmet(plan)

    def _record_unmet(self, plan: Plan) -> None:
        decisions = [
            self._decision("unmet", unmet.subject, unmet.reason.text, str(unmet.reason.cause))
            for unmet in plan.unmet[:_MAX_UNMET_DECISIONS]
        ]
        more = len(plan.unmet) - _MAX_UNMET_DECISIONS
        if more > 0:
            name = self._config.spec.cluster_name
            why = f"{more} more kinds of demand must wait; shoal why {name} --pending lists them"
            decisions.append(self._decision("unmet", "further demand", why, "more"))
        self._journal.record_new(decisions, self._clock.now())

    # publish

    async def _publish(self, reading: GcsReading | None) -> None:
        spec = self._config.spec
        await self._publisher.publish(
            spec,
            reading,
            self._plan,
            self._planner.node_resources(spec, self._executor.node_manager.worker_hosts),
            self._head_monitor.error or self._journal.error or self._observer.error,
            self._loop_seconds,
            self._stamp,
            None if reading is None else self._autostop.due_at(self._config, reading, self.state),
        )

    # config and pace

    def should_run(self) -> bool:
        """Whether to go on; applies a config that was replaced. A shutdown that has begun is
        finished without a config."""
        if self._autostop.has_begun:
            return True
        stamp = controller_config.stamp(self._directory)
        if stamp is None:
            _log.info("the config was removed; exiting")
            return False
        if stamp != self._stamp:
            self._stamp = stamp
            with suppress_and_log(_log, "read the new config", ValueError, TypeError, KeyError):
                config = controller_config.read(self._directory)
                if config is not None:
                    self._record_config(stamp, config)
        return True

    def _should_resume(self) -> bool:
        """Whether `shoal up` was run during a shutdown, and the cluster still exists."""
        is_new = controller_config.stamp(self._directory) not in (None, self._stamp)
        return is_new and self._autostop.cancel() and self.should_run()

    def _record_config(self, stamp: int, config: ControllerConfig) -> None:
        """Record that `shoal up` was run. That counts even if the config is unchanged: the user may
        have fixed a problem outside of it."""
        _log.info("config %d: %s", stamp, status_file.describe_limits(config.spec))
        self._journal.record(ConfigApplied(stamp, self._clock.now()))
        if config != self._config:
            self._apply_config(config)

    def _apply_config(self, config: ControllerConfig) -> None:
        self._config = config
        self._executor.node_manager = self._make_node_manager(config)
        self._planner.reset(offerings_for(config.spec))
        self._offering_cache.reset()
        why = f"new settings: {status_file.describe_limits(config.spec)}"
        self._journal.record(self._decision("reconfigure", config.spec.cluster_name, why))

    def _heartbeat(self) -> None:
        """Show the supervisor and the agent server that the loop is alive."""
        self._iterated_at = self._clock.monotonic()
        heartbeat.touch(self._directory)

    async def _pause(self) -> None:
        """Wait for the next iteration; the end of a task starts it early."""
        is_active = self.is_busy or bool(self._plan.unmet)
        short = min(_SHORT_PAUSE_FACTOR * self._loop_seconds, _MAX_SHORT_PAUSE_SECONDS)
        long = min(_LONG_PAUSE_FACTOR * self._loop_seconds, _MAX_LONG_PAUSE_SECONDS)
        pause = _ACTIVE_PAUSE_SECONDS if is_active else max(_ACTIVE_PAUSE_SECONDS, short, long)
        waking = asyncio.ensure_future(self._executor.wait_for_wake())
        sleeping = asyncio.ensure_future(self._clock.sleep(pause))
        try:
            await asyncio.wait({waking, sleeping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waking.cancel()
            sleeping.cancel()

    def _decide_once(self, action: Action, subject: str, why: str, cause: str = "") -> None:
        """Record a decision unless the last one about its subject was the same."""
        decision = self._decision(action, subject, why, cause)
        self._journal.record_new([decision], self._clock.now())

    def _decision(self, action: Action, subject: str, why: str, cause: str = "") -> Decision:
        return Decision(self._clock.now(), action, subject, why, cause)
