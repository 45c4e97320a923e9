"""Carries decisions out, each as a task of its own, so that nothing slow ever holds up the loop.

What is about to be done is in the journal before it is done; what came of it, as soon as it is
known.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, cast

from shoal import scaling
from shoal.controller.journal import Journal
from shoal.controller.lifecycle import DEADLINES, Node, moved
from shoal.controller.node_manager import NodeManager
from shoal.controller.state import (
    Blocked,
    Decision,
    Failure,
    Intent,
    IntentResolved,
    NodeUpdated,
    Success,
)
from shoal.core.clock import Clock
from shoal.core.errors import (
    AuthError,
    CapacityError,
    ConfigError,
    QuotaError,
    SetupError,
    ShoalError,
    TransientError,
)
from shoal.core.events import Event, NodeChanged, Output
from shoal.core.node_phase import Phase
from shoal.providers.model import Instance, LaunchRequest
from shoal.scaling import Cause, LaunchFailure
from shoal.scaling.inputs import FailureKind, Market

# After so many setups in a row that failed, a node type is given up until `shoal up` runs again.
MOST_SETUP_FAILURES = 3
_LOG_LINES = 2000
_MOVE_SECONDS = 3600.0


class Engine(Protocol):
    """The part of the GCS that acts. Calls block."""

    def drain_idle(self, ray_id: str, why: str) -> tuple[bool, str]: ...

    def drain_busy(self, ray_id: str, why: str, deadline: float) -> tuple[bool, str]: ...


class ActionExecutor:
    """The tasks that are under way, by what they are about: a node's id or an intent's token.
    `known` are the machines, by id: those that the provider listed, and those just created, which
    its list may not show yet. `head_missed_at` is when the head's Ray was last not there."""

    def __init__(
        self, workshop: NodeManager, engine: Engine, journal: Journal, clock: Clock, logs: Path
    ) -> None:
        self.workshop = workshop
        self.known: dict[str, Instance] = {}
        self.head_missed_at = float("-inf")
        self._engine = engine
        self._journal = journal
        self._clock = clock
        self._logs = logs
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stirred = asyncio.Event()

    @property
    def busy(self) -> set[str]:
        """The nodes and intents on which something is being done."""
        return set(self._tasks)

    async def stirred(self) -> None:
        """Return when a task has ended, or something was heard, since this was last called."""
        await self._stirred.wait()
        self._stirred.clear()

    def launch(self, wish: scaling.PlannedLaunch, head: Instance) -> None:
        """Buy machines and make them nodes."""
        intent = Intent(
            token=secrets.token_hex(8),
            node_type=wish.node_type,
            count=wish.count,
            why=wish.reason.text,
            at=self._clock.now(),
            throttled=wish.throttled,
            market=wish.market,
            zone=wish.zone,
            price_per_hour=wish.price_per_hour,
        )
        subject = f"{wish.count} x {wish.node_type}"
        self._journal.record(intent, self._decision("launch", subject, wish.reason))
        if self._journal.is_whole():
            self.resume(intent, head)
        else:  # should this process die, nobody would know of them
            self._journal.record(IntentResolved(intent.token))

    def resume(self, intent: Intent, head: Instance) -> None:
        """Ask for what an intent names. Its token makes a second time harmless."""
        self._start(intent.token, self._create(intent, head))

    def bring_up(self, node: Node, instance: Instance, head: Instance, *, anew: bool) -> None:
        """Make a machine that is there a node."""
        self._start(node.id, self._bring_up(instance, head, anew=anew))

    def drain(self, wish: scaling.PlannedDrain, ray_id: str) -> None:
        """Ask a node to give up its place. It is ended once its Ray has left."""
        node = self._journal.memory.nodes[wish.node_id]
        self._journal.record(self._decision("drain", node.name, wish.reason))
        self._start(node.id, self._drain(node, ray_id, wish.reason))

    def leave(self, node: Node, ray_id: str) -> None:
        """Keep new work away from a node whose machine will be taken away."""
        self._start(node.id, self._leave(node, ray_id, self._tasks.get(node.id)))

    def stir(self) -> None:
        """Have the loop look again at once."""
        self._stirred.set()

    def end(self, node: Node, why: str) -> None:
        """Give a node's machine back, whatever is being done with it."""
        self._start(node.id, self._end(node.id, why, self._tasks.get(node.id)))

    def cancel(self, wish: scaling.PlannedCancel) -> None:
        """End a machine that has not become a node yet."""
        node = self._journal.memory.nodes[wish.node_id]
        self._journal.record(self._decision("cancel", node.name, wish.reason))
        self.end(node, wish.reason.text)

    async def close(self) -> None:
        """Cancel everything and wait for its end. The journal knows what was left undone."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def note(self, node_id: str, phase: Phase, detail: str = "", **more: Any) -> None:
        """Write down that a node is in a phase, if the table allows it."""
        node = self._journal.memory.nodes.get(node_id)
        after = moved(node, phase, self._clock.now(), detail) if node else None
        if after is not None and (after != node or more):
            self._journal.record(NodeUpdated(replace(after, **more)))

    def _start(self, key: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks[key] = task

        def ended(_: asyncio.Task[None]) -> None:
            if self._tasks.get(key) is task:
                del self._tasks[key]
            self._stirred.set()

        task.add_done_callback(ended)

    async def _create(self, intent: Intent, head: Instance) -> None:
        wish = LaunchRequest(
            intent.node_type,
            "worker",
            intent.count,
            intent.token,
            cast(Market, intent.market),
            intent.zone,
        )
        patience, _ = DEADLINES[Phase.REQUESTED]
        try:
            got = await asyncio.wait_for(self.workshop.create(wish), patience)
        except Exception as error:
            if isinstance(error, asyncio.TimeoutError):  # what came of it, the list will show
                error = TransientError(f"no answer within {patience:.0f} s")
            self._journal.record(IntentResolved(intent.token))
            self._failed_to_launch(intent, as_shoal_error(error))
            return
        instances = got.instances
        self.known.update({i.id: i for i in instances})
        now = self._clock.now()
        nodes = [
            Node(
                id=i.id,
                name=i.name,
                node_type=i.node_type,
                role="worker",
                phase=Phase.BOOTING,
                since=now,
                created=now,
                address=i.address,
                why=intent.why,
                throttled=intent.throttled,
                market=i.market or intent.market,
                zone=i.zone or intent.zone,
                price_per_hour=i.price_per_hour,
            )
            for i in instances
        ]
        self._journal.record(*(NodeUpdated(node) for node in nodes), IntentResolved(intent.token))
        missing = intent.count - len(nodes)
        if missing > 0:
            short = replace(intent, count=missing)
            why = got.refusal
            self._failed_to_launch(short, CapacityError("no more are to be had just now", why=why))
        else:
            self._journal.record(Success(intent.node_type, "launch"))
        for node, instance in zip(nodes, instances, strict=True):
            self.bring_up(node, instance, head, anew=False)

    def _failed_to_launch(self, intent: Intent, error: ShoalError) -> None:
        kind: FailureKind = "quota" if isinstance(error, QuotaError) else "capacity"
        failure = LaunchFailure(
            intent.node_type, self._clock.now(), kind, cast(Market, intent.market), intent.zone
        )
        self._journal.record(
            Failure(failure, str(error)),
            self._say("failed", f"{intent.count} x {intent.node_type}", str(error), error.label),
        )
        if isinstance(error, (AuthError, ConfigError)):
            self._give_up(intent.node_type, f"{error}; fix: {error.fix or 'correct the file'}")

    async def _bring_up(self, instance: Instance, head: Instance, *, anew: bool) -> None:
        log, began = _Log(), self._clock.now()
        try:
            error = await self.workshop.bring_up(
                instance, head, lambda event: self._hear(instance.id, event, log), anew=anew
            )
        except Exception as raised:
            error = as_shoal_error(raised)
        blameless = error is not None and not await self._head_was_well(head, began)
        if instance.id not in self._journal.memory.nodes:
            return  # its machine vanished meanwhile
        if error is None:
            self.note(instance.id, Phase.READY)
            self._journal.record(Success(instance.node_type, "setup"))
            return
        kept = log.keep(self._logs / f"{instance.name}-{instance.id}.log", error)
        self._failed_setup(instance, error, kept, blameless=blameless)

    async def _head_was_well(self, head: Instance, since: float) -> bool:
        """Whether the head's Ray has been there all the time. No node can join without, and that
        says nothing of the node."""
        if self.head_missed_at >= since:
            return False
        try:
            return await self.workshop.head_runs(head)
        except ShoalError:
            return False

    def _hear(self, node_id: str, event: Event, log: _Log) -> None:
        if isinstance(event, Output):
            log.lines.append(event.line)
            del log.lines[:-_LOG_LINES]
        elif isinstance(event, NodeChanged) and event.phase not in (Phase.FAILED, Phase.READY):
            self.note(node_id, event.phase, event.detail)

    def _failed_setup(
        self, instance: Instance, error: ShoalError, log: Path, *, blameless: bool
    ) -> None:
        node = self._journal.memory.nodes[instance.id]
        text = f"{error} (its log: {log})"
        self.note(instance.id, Phase.FAILED, text, ended=text)
        self._journal.record(self._say("failed", node.name, text, error.label))
        if not blameless and self.workshop.is_of_the_type(error):
            self._count_failure(node, error)

    def _count_failure(self, node: Node, error: ShoalError) -> None:
        failure = LaunchFailure(
            node.node_type, self._clock.now(), "setup", cast(Market, node.market), node.zone
        )
        self._journal.record(Failure(failure, str(error)))
        setups = [
            f
            for f in self._journal.memory.failures
            if f.failure.node_type == node.node_type and f.failure.kind == "setup"
        ]
        if len(setups) >= MOST_SETUP_FAILURES:
            why = f"{len(setups)} nodes in a row could not be set up, the last: {error}"
            self._give_up(node.node_type, why)

    def _give_up(self, node_type: str, why: str) -> None:
        if node_type not in self._journal.memory.blocked:
            self._journal.record(Blocked(node_type, why), self._say("give up", node_type, why))

    async def _drain(self, node: Node, ray_id: str, reason: scaling.Reason) -> None:
        self.note(node.id, Phase.DRAINING, reason.text, ended=reason.text)
        ask: Callable[[], tuple[bool, str]]
        if reason.cause is Cause.CONSOLIDATION:
            deadline = self._clock.now() + _MOVE_SECONDS
            ask = lambda: self._engine.drain_busy(ray_id, reason.text, deadline)  # noqa: E731
        else:
            ask = lambda: self._engine.drain_idle(ray_id, reason.text)  # noqa: E731
        decision: Decision | None = None
        try:
            agreed, answer = await asyncio.to_thread(ask)
            if not agreed:
                why = f"it has work again: {answer}" if answer else "it has work again"
                decision = self._say("keep", node.name, why, "busy")
        except ShoalError as error:
            decision = self._say("retry", node.name, f"not drained yet: {error}")
        now = self._journal.memory.nodes.get(node.id)
        if decision is not None and now is not None and not now.notice:
            self.note(node.id, Phase.READY, ended="")
            self._journal.record(decision)

    async def _leave(self, node: Node, ray_id: str, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        deadline = node.taken_at or self._clock.now() + _MOVE_SECONDS
        # A GCS that does not hear it now is told again when it is read.
        with contextlib.suppress(ShoalError):
            await asyncio.to_thread(self._engine.drain_busy, ray_id, node.ended, deadline)
            last = [d for d in self._journal.memory.decisions if d.subject == node.name][-1:]
            if [d.action for d in last] != ["drained"]:
                why = "Ray gives it no new work, and knows until when it is there"
                self._journal.record(self._say("drained", node.name, why, "notice"))

    async def _end(self, node_id: str, why: str, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            before.cancel()
            await asyncio.wait([before])
        node = self._journal.memory.nodes.get(node_id)
        if node is None:
            return  # its machine vanished meanwhile
        healthy = node.phase is Phase.DRAINING
        # `since` starts anew with every order, which is what its deadline counts from.
        since = self._clock.now()
        self.note(node_id, Phase.TERMINATING, why, ended=node.ended or why, since=since)
        instance = self.known.get(node_id)
        if instance is None:
            return  # nobody lists it; the next list that lacks it is the proof that it is gone
        try:
            await self.workshop.end(instance, healthy=healthy)
        except Exception as error:
            text = f"not ended yet: {as_shoal_error(error)}"
            self._journal.record(self._say("retry", node.name, text))
            return
        self.note(node_id, Phase.GONE, why)

    def _decision(self, action: str, subject: str, reason: scaling.Reason) -> Decision:
        return self._say(action, subject, reason.text, str(reason.cause))

    def _say(self, action: str, subject: str, why: str, cause: str = "") -> Decision:
        return Decision(self._clock.now(), action, subject, why, cause)


def as_shoal_error(error: Exception) -> ShoalError:
    """Any failure of an action as one that can be told: a fault of the program in one node's
    work must not stop the work on the others."""
    if isinstance(error, ShoalError):
        return error
    return SetupError(f"{type(error).__name__}: {error}", why="a fault inside Shoal")


class _Log:
    """What a node printed while it was set up; kept only if that fails."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def keep(self, path: Path, error: ShoalError) -> Path:
        text = "\n".join([*self.lines, *error.output, f"{error.label}: {error}", ""])
        with contextlib.suppress(OSError):  # a disk that is full must not hold up anything else
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return path
