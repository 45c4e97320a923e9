"""Executes decisions, each as a task, so that no slow call holds up the loop.

An intent is in the journal before its call is made, and its result as soon as it is known.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, cast

from shoal import scaling
from shoal.controller.journal import Journal
from shoal.controller.lifecycle import DEADLINES, Node, with_phase
from shoal.controller.node_manager import LaunchResult, NodeManager
from shoal.controller.state import (
    Action,
    Blocked,
    Decision,
    Failure,
    IntentResolved,
    LaunchIntent,
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
from shoal.core.events import Event, NodeChanged, Output, Warned
from shoal.core.logs import suppress_and_log
from shoal.core.node_phase import Phase
from shoal.providers.model import Instance, LaunchRequest
from shoal.scaling import Cause, LaunchFailure
from shoal.scaling.inputs import FailureKind, Market

_log = logging.getLogger(__name__)

# After this many failed setups in a row, a node type is not launched again before `shoal up`.
MAX_SETUP_FAILURES = 3
# The same for launches that the provider denies: at first a role may not have propagated yet, or
# the metadata service may not answer.
_MAX_AUTH_FAILURES = 4
_MAX_OUTPUT_LINES = 2000
# The deadline for Ray, where neither the user nor the provider sets one.
_DRAIN_SECONDS = 3600.0


class GcsDrainer(Protocol):
    """The part of the GCS client that drains nodes. Calls block."""

    def drain_idle(self, ray_id: str, why: str) -> tuple[bool, str]: ...

    def drain_by_deadline(self, ray_id: str, why: str, deadline: float) -> tuple[bool, str]: ...


class ActionExecutor:
    """Runs launches, bootstraps, drains and terminations as tasks, at most one per node.

    Three views of a node must not be confused: the plan wants it, the journal records what was
    requested and done, and the provider and Ray report what exists. The executor turns the first
    into the second; reconciling compares the second with the third.

    busy:                  node ids and launch tokens with a running task
    instances:             instances by id: those listed by the provider, and those just launched,
                           which its list may not contain yet
    node_manager:          replaced when the config changes
    head_ray_missing_at:   when the head's Ray was last observed to be missing
    """

    def __init__(
        self,
        node_manager: NodeManager,
        gcs: GcsDrainer,
        journal: Journal,
        clock: Clock,
        log_directory: Path,
    ) -> None:
        self.node_manager = node_manager
        self.instances: dict[str, Instance] = {}
        self.head_ray_missing_at = float("-inf")
        self._gcs = gcs
        self._journal = journal
        self._clock = clock
        self._log_directory = log_directory
        self._auth_failures: Counter[str] = Counter()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()

    @property
    def busy(self) -> set[str]:
        return set(self._tasks)

    async def wait_for_wake(self) -> None:
        """Return when a task has ended, or `wake` was called, since this was last called."""
        await self._wake.wait()
        self._wake.clear()

    def wake(self) -> None:
        """Start the loop's next iteration at once."""
        self._wake.set()

    def launch(self, planned: scaling.PlannedLaunch, head: Instance) -> None:
        """Launch instances and bootstrap them as nodes."""
        intent = LaunchIntent(
            token=secrets.token_hex(8),
            node_type=planned.node_type,
            count=planned.count,
            why=planned.reason.text,
            at=self._clock.now(),
            throttled=planned.throttled,
            market=planned.market,
            zone=planned.zone,
            price_per_hour=planned.price_per_hour,
            hosts=planned.hosts,
        )
        subject = f"{planned.count} x {planned.node_type}"
        self._journal.record(intent, self._planned_decision("launch", subject, planned.reason))
        if self._journal.ensure_writable():
            self.resume_launch(intent, head)
        else:  # if this process died now, the instances would be forgotten
            self._journal.record(IntentResolved(intent.token))

    def resume_launch(self, intent: LaunchIntent, head: Instance) -> None:
        """Launch what an intent names. Its token makes a repetition harmless."""
        self._start(intent.token, self._launch(intent, head))

    def bootstrap(self, node: Node, instance: Instance, head: Instance, *, restart: bool) -> None:
        """Bootstrap an existing instance as a node."""
        self._start(node.id, self._bootstrap(instance, head, restart=restart))

    def drain(self, planned: scaling.PlannedDrain, ray_id: str) -> None:
        """Drain a node. It is terminated once it has left Ray."""
        node = self._journal.state.nodes[planned.node_id]
        self._journal.record(self._planned_decision("drain", node.name, planned.reason))
        self._start(node.id, self._drain(node, ray_id, planned.reason))

    def drain_for_interruption(self, node: Node, ray_id: str) -> None:
        """Keep new work away from a node that its provider will terminate."""
        task = self._drain_for_interruption(node, ray_id, self._tasks.get(node.id))
        self._start(node.id, task)

    def terminate(self, node: Node, why: str) -> None:
        """Terminate a node's instance, and cancel its running task."""
        self._start(node.id, self._terminate(node.id, why, self._tasks.get(node.id)))

    def cancel(self, planned: scaling.PlannedCancel) -> None:
        """Terminate an instance that is not a node yet."""
        node = self._journal.state.nodes[planned.node_id]
        self._journal.record(self._planned_decision("cancel", node.name, planned.reason))
        self.terminate(node, planned.reason.text)

    async def close(self) -> None:
        """Cancel all tasks and wait for their end. The journal knows what is unfinished."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def transition(self, node_id: str, phase: Phase, detail: str = "", **fields: Any) -> None:
        """Record that a node is in a phase, if the transition is legal."""
        node = self._journal.state.nodes.get(node_id)
        after = with_phase(node, phase, self._clock.now(), detail) if node else None
        if after is not None and (after != node or fields):
            self._journal.record(NodeUpdated(replace(after, **fields)))

    def _start(self, key: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks[key] = task

        def on_done(_: asyncio.Task[None]) -> None:
            if self._tasks.get(key) is task:
                del self._tasks[key]
            self._wake.set()

        task.add_done_callback(on_done)

    async def _launch(self, intent: LaunchIntent, head: Instance) -> None:
        request = LaunchRequest(
            intent.node_type,
            "worker",
            intent.count,
            intent.token,
            cast(Market, intent.market),
            intent.zone,
            tuple(intent.hosts),
        )
        timeout, _ = DEADLINES[Phase.REQUESTED]
        try:
            result = await asyncio.wait_for(self.node_manager.launch(request), timeout)
        except Exception as error:
            if isinstance(error, asyncio.TimeoutError):  # a later listing shows what it launched
                error = TransientError(f"no answer within {timeout:.0f} s")
            self._journal.record(IntentResolved(intent.token))
            self._on_launch_failed(intent, as_shoal_error(error))
            return
        nodes = self._record_launched(intent, result)
        for node, instance in zip(nodes, result.instances, strict=True):
            self.bootstrap(node, instance, head, restart=False)

    def _record_launched(self, intent: LaunchIntent, result: LaunchResult) -> list[Node]:
        self.instances.update({i.id: i for i in result.instances})
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
                extras_per_hour=i.extras_per_hour,
            )
            for i in result.instances
        ]
        self._journal.record(*(NodeUpdated(node) for node in nodes), IntentResolved(intent.token))
        missing = intent.count - len(nodes)
        if missing > 0:
            what = f"could not launch {missing} of {intent.count}"
            error = CapacityError(what, why=result.refusal)
            self._on_launch_failed(replace(intent, count=missing), error)
        else:
            self._journal.record(Success(intent.node_type, "launch"))
            self._auth_failures.pop(intent.node_type, None)
        return nodes

    def _on_launch_failed(self, intent: LaunchIntent, error: ShoalError) -> None:
        kind: FailureKind = "quota" if isinstance(error, QuotaError) else "capacity"
        failure = LaunchFailure(
            intent.node_type, self._clock.now(), kind, cast(Market, intent.market), intent.zone
        )
        subject = f"{intent.count} x {intent.node_type}"
        self._journal.record(
            Failure(failure, str(error)),
            self._decision("failed", subject, str(error), error.label),
        )
        is_auth_error = isinstance(error, AuthError)
        self._auth_failures[intent.node_type] += 1 if is_auth_error else 0
        if isinstance(error, ConfigError) or (
            is_auth_error and self._auth_failures[intent.node_type] >= _MAX_AUTH_FAILURES
        ):
            fix = error.fix or "correct the cluster file"
            self._block(intent.node_type, f"{error}; fix: {fix}")

    async def _bootstrap(self, instance: Instance, head: Instance, *, restart: bool) -> None:
        output, began = _BootstrapOutput(), self._clock.now()
        try:
            error = await self.node_manager.bootstrap(
                instance,
                head,
                lambda event: self._on_bootstrap_event(instance.id, event, output),
                restart=restart,
            )
        except Exception as raised:
            error = as_shoal_error(raised)
        is_heads_fault = error is not None and not await self._was_head_ray_up(head, began)
        if instance.id not in self._journal.state.nodes:
            return  # its instance disappeared meanwhile
        if error is None:
            self.transition(instance.id, Phase.READY)
            self._journal.record(Success(instance.node_type, "setup"))
            return
        path = self._log_directory / f"{instance.name}-{instance.id}.log"
        output.save(path, error)
        self._on_bootstrap_failed(instance, error, path, is_heads_fault=is_heads_fault)

    async def _was_head_ray_up(self, head: Instance, since: float) -> bool:
        """Whether the head's Ray has been up all the time. No node can join without it, so such a
        failure says nothing about the node type."""
        if self.head_ray_missing_at >= since:
            return False
        try:
            return await self.node_manager.is_head_ray_running(head)
        except ShoalError as error:
            _log.debug("could not check the head's Ray: %s", error)
            return False

    def _on_bootstrap_event(self, node_id: str, event: Event, output: _BootstrapOutput) -> None:
        if isinstance(event, Output):
            output.lines.append(event.line)
            del output.lines[:-_MAX_OUTPUT_LINES]
        elif isinstance(event, Warned):
            why = f"{event.what}: {event.why}"
            self._journal.record(self._decision("warning", event.node, why))
        elif isinstance(event, NodeChanged) and event.phase not in (Phase.FAILED, Phase.READY):
            self.transition(node_id, event.phase, event.detail)

    def _on_bootstrap_failed(
        self, instance: Instance, error: ShoalError, log: Path, *, is_heads_fault: bool
    ) -> None:
        node = self._journal.state.nodes[instance.id]
        text = f"{error} (log: {log})"
        self.transition(instance.id, Phase.FAILED, text, ended=text)
        self._journal.record(self._decision("failed", node.name, text, error.label))
        # A node that was ready once has lost its Ray, maybe with its instance: its setup worked.
        is_restart = node.restarts > 0
        if not (is_heads_fault or is_restart) and self.node_manager.blames_node_type(error):
            self._count_setup_failure(node, error)

    def _count_setup_failure(self, node: Node, error: ShoalError) -> None:
        failure = LaunchFailure(
            node.node_type, self._clock.now(), "setup", cast(Market, node.market), node.zone
        )
        self._journal.record(Failure(failure, str(error)))
        setup_failures = [
            f
            for f in self._journal.state.failures
            if f.failure.node_type == node.node_type and f.failure.kind == "setup"
        ]
        if len(setup_failures) >= MAX_SETUP_FAILURES:
            why = f"setup failed on {len(setup_failures)} nodes in a row; last error: {error}"
            self._block(node.node_type, why)

    def _block(self, node_type: str, why: str) -> None:
        if node_type not in self._journal.state.blocked:
            self._journal.record(Blocked(node_type, why), self._decision("block", node_type, why))

    async def _drain(self, node: Node, ray_id: str, reason: scaling.Reason) -> None:
        self.transition(node.id, Phase.DRAINING, reason.text, ended=reason.text)
        drain: Callable[[], tuple[bool, str]]
        if reason.cause is Cause.CONSOLIDATION:
            deadline = self._clock.now() + _DRAIN_SECONDS
            drain = lambda: self._gcs.drain_by_deadline(ray_id, reason.text, deadline)  # noqa: E731
        else:
            drain = lambda: self._gcs.drain_idle(ray_id, reason.text)  # noqa: E731
        decision: Decision | None = None
        try:
            accepted, rejection = await asyncio.to_thread(drain)
            if not accepted:
                why = f"it is in use again: {rejection}" if rejection else "it is in use again"
                decision = self._decision("keep", node.name, why, "busy")
        except ShoalError as error:
            decision = self._decision("retry", node.name, f"could not drain it: {error}")
        current = self._journal.state.nodes.get(node.id)
        if decision is not None and current is not None and not current.interruption:
            self.transition(node.id, Phase.READY, ended="")
            self._journal.record(decision)

    async def _drain_for_interruption(
        self, node: Node, ray_id: str, previous: asyncio.Task[None] | None
    ) -> None:
        if previous is not None:
            await asyncio.wait([previous])
        deadline = node.terminates_at or self._clock.now() + _DRAIN_SECONDS
        # When the GCS does not answer, the loop repeats this after the next reading.
        with suppress_and_log(_log, f"drain {node.name} in Ray", ShoalError):
            await asyncio.to_thread(self._gcs.drain_by_deadline, ray_id, node.ended, deadline)
            last = [d for d in self._journal.state.decisions if d.subject == node.name][-1:]
            if [d.action for d in last] != ["drained"]:
                why = "Ray schedules no new work on it and knows the deadline"
                self._journal.record(self._decision("drained", node.name, why, "interruption"))

    async def _terminate(self, node_id: str, why: str, previous: asyncio.Task[None] | None) -> None:
        if previous is not None:
            previous.cancel()
            await asyncio.wait([previous])
        node = self._journal.state.nodes.get(node_id)
        if node is None:
            return  # its instance disappeared meanwhile
        is_healthy = node.phase is Phase.DRAINING
        # Every call resets `since`, from which its deadline counts.
        since = self._clock.now()
        self.transition(node_id, Phase.TERMINATING, why, ended=node.ended or why, since=since)
        instance = self.instances.get(node_id)
        if instance is None:
            return  # not listed; the next listing without it proves that it is gone
        try:
            await self.node_manager.terminate(instance, healthy=is_healthy)
        except Exception as error:
            text = f"could not terminate it yet: {as_shoal_error(error)}"
            self._journal.record(self._decision("retry", node.name, text))
            return
        self.transition(node_id, Phase.GONE, why)

    def _planned_decision(self, action: Action, subject: str, reason: scaling.Reason) -> Decision:
        return self._decision(action, subject, reason.text, str(reason.cause))

    def _decision(self, action: Action, subject: str, why: str, cause: str = "") -> Decision:
        return Decision(self._clock.now(), action, subject, why, cause)


def as_shoal_error(error: Exception) -> ShoalError:
    """Any failure of an action as a `ShoalError`: a bug that one node triggers must not stop the
    work on the others."""
    if isinstance(error, ShoalError):
        return error
    _log.error("unexpected error", exc_info=error)
    return SetupError(f"{type(error).__name__}: {error}", why="this is a bug in Shoal")


class _BootstrapOutput:
    """What a node printed while it was bootstrapped; saved only if that fails."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def save(self, path: Path, error: ShoalError) -> None:
        text = "\n".join([*self.lines, *error.output, f"{error.label}: {error}", ""])
        with suppress_and_log(_log, f"write {path}", OSError):  # the disk may be full
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
