"""Observe, plan, act, again and again. One turn never waits for a machine: what takes time runs
as a task of the actor, and what cannot be seen just now is looked at in the next turn."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from shoal.catalog import offerings_for
from shoal.controller import controller_config as handovers
from shoal.controller import paths, status_file
from shoal.controller.autostop import Autostop
from shoal.controller.autostop import Engine as CountingEngine
from shoal.controller.controller_config import ControllerConfig
from shoal.controller.decision_dedup import DecisionDeduplicator
from shoal.controller.executor import ActionExecutor, as_shoal_error
from shoal.controller.executor import Engine as ActingEngine
from shoal.controller.head_monitor import HeadMonitor
from shoal.controller.interruption import Interruption, apply_interruption, in_words
from shoal.controller.journal import Journal
from shoal.controller.lifecycle import Node
from shoal.controller.metrics import Metrics
from shoal.controller.node_manager import NodeManager
from shoal.controller.offering_cache import OfferingCache
from shoal.controller.planner_input import Sizing, within_reach
from shoal.controller.reconcile import Observation, reconcile
from shoal.controller.state import ConfigApplied, ControllerState, Decision, NodeUpdated
from shoal.controller.status_publisher import Engine as ToldEngine
from shoal.controller.status_publisher import StatusPublisher
from shoal.controller.supervisor import STILL_SECONDS
from shoal.core.clock import Clock
from shoal.core.errors import ShoalError
from shoal.core.node_phase import Role
from shoal.providers.model import Instance
from shoal.ray_runtime.gcs_client import Reading
from shoal.scaling import Plan

# How long a turn lasts while something moves. While nothing does, resting for so many times the
# length of a turn bounds what an idle cluster's controller takes of a core: well under a hundredth
# for hundreds of nodes, a fifteenth for ten thousand.
_QUICK_SECONDS = 0.4
_SMALL_REST_PER_WORK, _SMALL_REST_SECONDS = 120.0, 1.0
_REST_PER_WORK, _LONGEST_REST_SECONDS = 15.0, 5.0
# One that does not agree with what else is known is soon followed by another.
_LIST_SECONDS_IN_DOUBT = 5.0
# A list that has not come after so long is asked for again.
_LONGEST_LIST_SECONDS = 120.0
# A turn may take this long to read the GCS; a slower answer belongs to the next.
_READ_SECONDS = 8.0
# How old the knowledge of what may move can be: an actor that came since is not asked about.
_PIN_SECONDS = 10.0
# How long a turn waits for the first list before the next one does.
_FIRST_LIST_SECONDS = 20.0
# So many kinds of demand that must wait are told one by one.
_MOST_SAID = 20
_NEVER = float("-inf")


class Engine(ActingEngine, CountingEngine, ToldEngine, Protocol):
    """Ray's GCS. Calls block."""

    def pinned(self) -> Collection[str]: ...


@dataclass(frozen=True)
class Tools:
    """What the controller works with; a test brings its own."""

    engine: Engine
    workshop: Callable[[ControllerConfig], NodeManager]
    clock: Clock
    metrics: Metrics | None = None


class Controller:
    """One cluster's controller. `run` returns when it was told to end."""

    def __init__(self, directory: Path, handover: ControllerConfig, tools: Tools) -> None:
        self._directory = directory
        self._handover = handover
        self._stamp = handovers.stamp(directory)
        self._tools = tools
        self._clock = tools.clock
        self._journal = Journal(directory / paths.JOURNAL)
        self._actor = ActionExecutor(
            tools.workshop(handover),
            tools.engine,
            self._journal,
            self._clock,
            directory / paths.SETUP_LOGS,
        )
        self._head = HeadMonitor(self._actor, self._journal, self._clock)
        self._sizing = Sizing(self._journal, offerings_for(handover.spec))
        self._selling = OfferingCache(self._clock)
        cluster = handover.spec.cluster_name
        self._autostop = Autostop(
            self._actor,
            tools.engine,
            self._clock,
            lambda action, why: self._say_once(action, cluster, why),
        )
        self._said = DecisionDeduplicator(self.memory.decisions, self._clock.now())
        self._teller = StatusPublisher(
            directory, self._journal, tools.engine, self._clock, tools.metrics
        )
        self._asked_at = self._listed_at = self._pins_asked_at = _NEVER
        self._listing: asyncio.Task[Sequence[Instance]] | None = None
        self._in_doubt = False
        self._reading: Reading | None = None
        self._turned_at = _NEVER
        self._plan = Plan()
        self._turn_seconds = 0.0
        if damaged := self._journal.unreadable:
            why = f"lines left out as damaged: {damaged}; the provider's list makes good for them"
            self._say_once("odd", "the journal", why)
        if self._stamp is not None and self._stamp != self.memory.handed_over.stamp:
            self._take_over(self._stamp, handover)

    @property
    def memory(self) -> ControllerState:
        return self._journal.memory

    @property
    def busy(self) -> bool:
        """Whether anything is under way."""
        return bool(self._actor.busy or self._head.busy)

    async def run(self) -> None:
        """Take turns until the handover is taken away; an end that has begun is finished."""
        self._leave_sign()
        try:
            while self.is_wanted() and not await self.turn():
                self._leave_sign()
                await self._pause()
        finally:
            await self.close()

    async def close(self) -> None:
        """Let go of everything that is under way; the journal knows it."""
        if self._listing is not None:
            self._listing.cancel()
        self._selling.close()
        self._autostop.close()
        await self._head.close()
        await self._actor.close()
        self._journal.close()

    async def turn(self) -> bool:
        """Look once, decide once, and start what follows. Returns whether that was the last:
        the cluster has been given back."""
        if self._autostop.has_begun and not self._is_wanted_again():
            return await self._autostop.stop(self._handover)
        began = self._clock.monotonic()
        fresh = await self._list()
        reading = self._reading = await self._read_gcs()
        self._reconcile(fresh, reading)
        self._head.watch(reading, self._actor.known)
        if reading is not None and self._listed_at != _NEVER:
            self._resume_intents()
            if await self._autostop.is_due(self._handover, reading, self.memory):
                return await self._autostop.stop(self._handover)
            self._learn_offers()
            await self._learn_what_may_move()
            spec = within_reach(
                self._handover.spec,
                self._actor.workshop.worker_hosts,
                self._actor.known,
                self.memory.nodes,
            )
            self._plan = self._sizing.plan(spec, reading, self._clock.now())
            self._carry_out(self._plan, reading)
        await self._tell(reading)
        self._turn_seconds = self._clock.monotonic() - began
        return False

    async def _tell(self, reading: Reading | None) -> None:
        spec = self._handover.spec
        await self._teller.tell(
            spec,
            reading,
            self._plan,
            self._sizing.sizes(spec),
            self._head.trouble or self._journal.trouble,
            self._turn_seconds,
            self._stamp,
        )

    def lease(self, role: Role) -> float | None:
        """For how long a machine may count on its cluster from now on; see `reception.Host`."""
        if self._clock.monotonic() - self._turned_at > STILL_SECONDS:
            return None
        return self._handover.spec.shoal.lease_for(role)

    def hear(self, node_id: str, notice: Interruption) -> bool:
        """Take note, at once, that a machine will be taken away: nothing new runs there, and the
        next turn, which begins now, asks for another. False while no such node is known."""
        node = self.memory.nodes.get(node_id)
        if node is None:
            return False
        if node.role == "head":
            self._say_once("warn", node.name, in_words(notice), "notice")
        after = apply_interruption(node, notice, self._clock.now())
        if after is not None:
            said = Decision(self._clock.now(), "drain", node.name, after.ended, "notice")
            self._journal.record(NodeUpdated(after), said)
            if after.on_the_way:
                self._actor.end(after, after.ended)
            else:
                self._keep_work_away(after)
            self._actor.stir()
        return True

    def _keep_work_away(self, node: Node) -> None:
        """Have Ray know that a node is leaving; while the GCS is silent, the next turn does."""
        ray = self._reading.nodes.get(node.id) if self._reading is not None else None
        if ray is not None:
            self._actor.leave(node, ray.ray_id)

    def _leave_sign(self) -> None:
        """Show that the loop turns, to the supervisor and to whoever asks for a lease."""
        self._turned_at = self._clock.monotonic()
        with contextlib.suppress(OSError):  # the cluster may be on its way out, or its disk full
            (self._directory / paths.PULSE).touch()

    def _learn_offers(self) -> None:
        """Decide by what the provider itself says of its machines, as soon as it has; until then,
        and if it does not, by the catalog."""
        offers = self._selling.news(self._actor.workshop)
        if offers is not None:
            self._sizing.offers = offers

    async def _learn_what_may_move(self) -> None:
        """Ask Ray, now and then, which nodes have work that does not end by itself. Only those who
        consolidate need to know."""
        now = self._clock.now()
        if not self._handover.spec.shoal.consolidate or now - self._pins_asked_at < _PIN_SECONDS:
            return
        self._pins_asked_at = now
        try:
            self._sizing.pinned = await asyncio.to_thread(self._tools.engine.pinned)
        except ShoalError:
            self._sizing.pinned = None

    def _is_wanted_again(self) -> bool:
        """Whether somebody has run `up` while the cluster was being given back, and it is still
        there."""
        anew = handovers.stamp(self._directory) not in (None, self._stamp)
        return anew and self._autostop.call_off() and self.is_wanted()

    def is_wanted(self) -> bool:
        """Whether to go on, with the newest wishes. An end that has begun is finished."""
        if self._autostop.has_begun:
            return True
        stamp = handovers.stamp(self._directory)
        if stamp is None:
            return False
        if stamp != self._stamp:
            self._stamp = stamp
            with contextlib.suppress(ValueError, TypeError, KeyError):
                new = handovers.read(self._directory)
                if new is not None:
                    self._take_over(stamp, new)
        return True

    def _take_over(self, stamp: int, handover: ControllerConfig) -> None:
        """Follow what `up` says. Also where it says what it said before: whoever runs it may have
        mended what nothing here can see."""
        self._journal.record(ConfigApplied(stamp, self._clock.now()))
        if handover != self._handover:
            self._adopt(handover)

    def _adopt(self, handover: ControllerConfig) -> None:
        self._handover = handover
        self._actor.workshop = self._tools.workshop(handover)
        self._sizing.offers = offerings_for(handover.spec)
        self._selling.close()
        text, cluster = status_file.in_words(handover.spec), handover.spec.cluster_name
        self._journal.record(
            Decision(self._clock.now(), "follow", cluster, f"new settings: {text}")
        )

    async def _list(self) -> Sequence[Instance] | None:
        """The provider's list if a new one has arrived. The first is waited for, since nothing
        may be launched before it is known what is there."""
        every = self._actor.workshop.list_interval_s
        if self._in_doubt:
            every = min(every, _LIST_SECONDS_IN_DOUBT)
        if self._listing is None and self._clock.now() - self._asked_at >= every:
            self._asked_at = self._clock.now()
            self._listing = asyncio.ensure_future(self._actor.workshop.find())
        if self._listing is None:
            return None
        patience = _FIRST_LIST_SECONDS if self._listed_at == _NEVER else 0.05
        await asyncio.wait([self._listing], timeout=patience)
        if not self._listing.done():
            if self._clock.now() - self._asked_at > _LONGEST_LIST_SECONDS:
                self._listing.cancel()
                self._listing = None
                self._say_once("odd", "the provider's list", "no answer; it is asked again")
            return None
        task, self._listing = self._listing, None
        try:
            found = task.result()
        except Exception as error:  # whatever it is, the next list may be better
            self._say_once("odd", "the provider's list", str(as_shoal_error(error)))
            return None
        self._listed_at = self._asked_at
        mine = {id: i for id, i in self._actor.known.items() if id in self.memory.nodes}
        self._actor.known = {**mine, **{i.id: i for i in found}}
        return found

    async def _read_gcs(self) -> Reading | None:
        try:
            return await asyncio.wait_for(asyncio.to_thread(self._tools.engine.read), _READ_SECONDS)
        except (ShoalError, asyncio.TimeoutError):
            return None

    def _reconcile(self, fresh: Sequence[Instance] | None, reading: Reading | None) -> None:
        sight = Observation(
            now=self._clock.now(),
            instances=fresh,
            listed_at=self._listed_at,
            ray=None if reading is None else reading.nodes,
            busy=self._actor.busy,
        )
        outcome = reconcile(self.memory, sight)
        if outcome.changed:
            self._journal.record(*(NodeUpdated(node) for node in outcome.changed.values()))
        if fresh is not None:
            self._in_doubt = bool(outcome.oddities)
        if outcome.oddities:
            self._say_once("odd", "what was seen", "; ".join(outcome.oddities[:_MOST_SAID]))
        head = self._head.instance(self._actor.known)
        for id, errand in outcome.errands.items():
            node, instance = self.memory.nodes[id], self._actor.known.get(id)
            if errand == "end":
                self._actor.end(node, node.ended or node.detail)
            elif errand == "drain":
                self._keep_work_away(node)
            elif instance is not None and head is not None:
                self._actor.bring_up(node, instance, head, anew=True)

    def _resume_intents(self) -> None:
        """Ask again for what a controller before this one asked for and never heard of."""
        head = self._head.instance(self._actor.known)
        for token, intent in list(self.memory.intents.items()):
            if token not in self._actor.busy and head is not None:
                self._actor.resume(intent, head)

    def _carry_out(self, plan: Plan, reading: Reading) -> None:
        head = self._head.instance(self._actor.known)
        if head is None:
            return
        if plan.launches and self._journal.is_whole():
            for launch in plan.launches:
                self._actor.launch(launch, head)
        for cancel in plan.cancels:
            if cancel.node_id in self.memory.nodes:
                self._actor.cancel(cancel)
        for drain in plan.drains:
            if drain.node_id not in self._actor.busy:
                self._actor.drain(drain, reading.nodes[drain.node_id].ray_id)
        self._say_what_waits(plan)

    def _say_what_waits(self, plan: Plan) -> None:
        now, more = self._clock.now(), len(plan.unmet) - _MOST_SAID
        said = [
            Decision(now, "cannot", unmet.subject, unmet.reason.text, str(unmet.reason.cause))
            for unmet in plan.unmet[:_MOST_SAID]
        ]
        if more > 0:
            why = f"{more} more kinds must wait; shoal why --pending names them"
            said.append(Decision(now, "cannot", "further demand", why, "more"))
        self._record_news(said)

    async def _pause(self) -> None:
        """Until the next turn; a task that ends brings it forward."""
        moving = self.busy or bool(self._plan.unmet)
        small = min(_SMALL_REST_PER_WORK * self._turn_seconds, _SMALL_REST_SECONDS)
        large = min(_REST_PER_WORK * self._turn_seconds, _LONGEST_REST_SECONDS)
        pause = _QUICK_SECONDS if moving else max(_QUICK_SECONDS, small, large)
        waiting = asyncio.ensure_future(self._actor.stirred())
        sleeping = asyncio.ensure_future(self._clock.sleep(pause))
        try:
            await asyncio.wait({waiting, sleeping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            sleeping.cancel()

    def _say_once(self, action: str, subject: str, why: str, cause: str = "") -> None:
        """Record a decision unless the last one of its subject was the same."""
        self._record_news([Decision(self._clock.now(), action, subject, why, cause)])

    def _record_news(self, decisions: Sequence[Decision]) -> None:
        if news := self._said.news(decisions, self._clock.now()):
            self._journal.record(*news)
