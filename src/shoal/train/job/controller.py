"""The controller of a job, as a Ray actor: feeds `Membership` with what happens, and performs its
actions. Training never waits for it. If it dies, Ray restarts it, and it learns from the agents
where the job stands.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal

import ray

from shoal.core.atomic_write import write_atomically
from shoal.core.clock import SystemClock
from shoal.core.logs import suppress_and_log
from shoal.core.polling import PollUntilDeadline
from shoal.train.job import placements
from shoal.train.job.actions import (
    Action,
    Exit,
    Finish,
    KillWorker,
    Record,
    ReleaseWorker,
    RequestWorker,
    Send,
    SignalWorker,
    StartWorker,
    WorkerReport,
)
from shoal.train.job.agent import AgentEvent, ExitEvent, MessageEvent, OutputEvent
from shoal.train.job.agent_handles import AgentHandle, AgentHandles
from shoal.train.job.fair_share import JobUse
from shoal.train.job.job_spec import (
    AUTO,
    CODE_FILE,
    HEARTBEAT_FILE,
    JOB_FILE,
    NAMESPACE,
    OUTPUT_FILE,
    RESTART,
    STATUS_FILE,
    JobSpec,
)
from shoal.train.job.journal import Entry, Journal, last_checkpoint_host
from shoal.train.job.membership import Membership
from shoal.train.job.sizing import Prices
from shoal.train.job.state import Settings
from shoal.train.job.waiting_notes import WaitingNotes
from shoal.train.messages import Generation, Progress

_log = logging.getLogger(__name__)

_TICK_S = 0.1
_HEARTBEAT_S = 0.5
_DRAIN_POLL_S = 0.5
_SHARE_POLL_S = 2.0
_RESTORE_S = 5.0
_CLOSE_S = 10.0
_COLLECT_S = 120.0
_COPY_S = 600.0
_RETRY_S = 1.0
# Followers of the job read its end before the controller goes.
_LINGER_S = 10.0


class Controller:
    def __init__(self, spec_json: str) -> None:
        self._spec = spec = JobSpec.from_json(spec_json)
        self._journal = Journal(spec.path, spec.created)
        if not self._journal.earlier:
            (spec.path / STATUS_FILE).unlink(missing_ok=True)
            (spec.path / JOB_FILE).write_text(spec_json)
        self._membership = Membership(
            Settings(
                spec.max_workers,
                spec.min_workers,
                spec.rescale_timeout_s,
                spec.checkpoint_timeout_s,
                restarts=spec.rescale_mode == RESTART,
                detects=spec.rescale_mode == AUTO,
                objective=spec.objective,
                prices=Prices(spec.worker_price, spec.other_price),
            )
        )
        self._notes = WaitingNotes(spec.resources(), time.monotonic())
        self._placements = placements.Placements(spec)
        self._placing = asyncio.Lock()
        self._agents = AgentHandles(spec, spec_json)
        self._reports: dict[str, list[WorkerReport]] | None = None  # while restoring, by node
        self._main: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._finish: Finish | None = None
        self._progress: Entry = {}
        self._ready = asyncio.Event()
        self._acknowledged = asyncio.Event()

    # --- for the laptop ---

    async def begin(self, code: bytes) -> None:
        (self._spec.path / CODE_FILE).write_bytes(code)
        self._ensure_running()

    async def follow(self, after: int, seconds: float) -> tuple[int, list[Entry]]:
        """Journal entries and output from number `after` on, as soon as there are any."""
        self._ensure_running()
        return await self._journal.wait(after, seconds)

    async def acknowledge(self) -> None:
        """The end of the job was read."""
        self._acknowledged.set()

    async def stop(self) -> None:
        self._ensure_running()
        await self._ready.wait()
        self._perform(self._membership.stop(time.monotonic()))

    async def resize(self, target: int) -> None:
        self._ensure_running()
        await self._ready.wait()
        self._perform(self._membership.resize(target, time.monotonic()))

    async def status(self) -> Entry:
        running = self._membership.state.running
        return {
            "workers": len(running.members) if running else 0,
            "generation": running.generation if running else 0,
            "members": list(running.members) if running else [],
            "progress": self._progress,
        }

    # --- for the agents ---

    async def beat(self, agent_id: str) -> Literal["ok", "report", "leave"]:
        self._ensure_running()
        if self._finish is not None:
            return "leave"
        if self._agents.hear(agent_id):
            return "ok"
        is_restoring = self._reports is not None and not self._agents.is_given_up(agent_id)
        return "report" if is_restoring else "leave"

    async def report(self, agent_id: str, node: str, reports: list[WorkerReport]) -> bool:
        """After a restart of the controller: an agent that runs already, and its workers."""
        if self._reports is None:
            return False
        self._agents.adopt(agent_id, node)
        self._reports[node] = reports
        return True

    async def receive(self, agent_id: str, events: Sequence[AgentEvent]) -> bool | None:
        """Returns None if the agent must send them again: after a restart, the reports of all
        agents come first."""
        self._ensure_running()
        if not self._ready.is_set():
            return None
        if self._agents.is_given_up(agent_id):
            return True
        now = time.monotonic()
        for event in events:
            if isinstance(event, OutputEvent):
                self._journal.add_output(event.lines)
            elif isinstance(event, ExitEvent):
                self._perform(self._membership.exited(event.worker, event.exit, now))
            elif isinstance(event, MessageEvent):
                if isinstance(event.message, Progress):
                    self._record_progress(event.message)
                self._perform(self._membership.message(event.message, now))
        return True

    # --- the loop ---

    def _ensure_running(self) -> None:
        # The first call starts the loop: after a restart that is an agent's heartbeat.
        if self._main is None:
            if self._journal.earlier:
                self._reports = {}
            self._main = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            await self._begin_or_restore()
            await asyncio.gather(self._watch(), self._poll_ray())
        except Exception as error:
            _log.exception("the controller failed")
            self._begin_finish(Finish(1, "the job's controller failed", repr(error)))

    async def _begin_or_restore(self) -> None:
        if self._reports is None:
            self._journal.add("started", script=self._spec.script, run=self._spec.created)
            self._perform(self._membership.start(time.monotonic()))
        elif ended := [e for e in self._journal.earlier if e["kind"] == "finishing"]:
            self._begin_finish(Finish(*(ended[-1][key] for key in ("status", "what", "why"))))
        else:
            await self._restore(self._reports)
        self._reports = None
        self._ready.set()

    async def _restore(self, by_node: Mapping[str, list[WorkerReport]]) -> None:
        known = {e["node"] for e in self._journal.earlier if e["kind"] == "agent"}
        async for _ in PollUntilDeadline(SystemClock(), _RESTORE_S, _TICK_S):
            if known <= set(by_node):
                break
        with suppress_and_log(_log, "find the placement groups", Exception):
            workers = {report.worker for reports in by_node.values() for report in reports}
            await asyncio.to_thread(self._placements.restore, workers)
        requested = [e["worker"] for e in self._journal.earlier if e["kind"] == "request"]
        number = 1 + max((int(worker[1:]) for worker in requested), default=0)
        sizes = [e for e in self._journal.earlier if e["kind"] in ("resize", "decision")]
        self._membership.restore_size(sizes)
        if any(e["kind"] == "kind" for e in self._journal.earlier):
            self._membership.restore_kind()
        reports = [report for reports in by_node.values() for report in reports]
        now = time.monotonic()
        self._perform(self._membership.restore(reports, now, next_worker=number))

    async def _watch(self) -> None:
        """Losses and deadlines. Never waits for Ray, which can take long when a node is lost."""
        next_heartbeat = 0.0
        while self._finish is None:
            await asyncio.sleep(_TICK_S)
            now = time.monotonic()
            if now >= next_heartbeat:
                next_heartbeat = now + _HEARTBEAT_S
                with suppress_and_log(_log, "write the heartbeat", OSError):
                    (self._spec.path / HEARTBEAT_FILE).touch()
            for node in self._agents.give_up_silent(now):
                self._perform(self._membership.node_lost(node, now))
            self._perform(self._membership.tick(now))
            for note in self._notes.check(self._membership.state, now):
                self._journal.add("note", note, "warning")

    async def _poll_ray(self) -> None:
        """Ray's GCS can be away for a while: training goes on."""
        next_drain_poll = next_share_poll = 0.0
        while self._finish is None:
            await asyncio.sleep(_TICK_S)
            with suppress_and_log(_log, "ask for placements", Exception):
                await self._place()
            now = time.monotonic()
            if now >= next_share_poll:
                next_share_poll = now + _SHARE_POLL_S
                with suppress_and_log(_log, "ask for other jobs", Exception):
                    await self._check_other_jobs()
            if now >= next_drain_poll:
                next_drain_poll = now + _DRAIN_POLL_S
                with suppress_and_log(_log, "ask for draining nodes", Exception):
                    await self._check_draining()

    async def _place(self) -> None:
        async with self._placing:
            placed = await asyncio.to_thread(self._placements.newly_placed)
        for worker, node in placed.items():
            self._perform(self._membership.placed(worker, node, time.monotonic()))

    async def _check_draining(self) -> None:
        for node, deadline in (await asyncio.to_thread(placements.draining_nodes)).items():
            # Without a deadline the node may go at any moment.
            seconds = max(0.0, deadline - time.time()) if deadline else 0.0
            now = time.monotonic()
            self._perform(self._membership.node_draining(node, now + seconds, now))

    async def _check_other_jobs(self) -> None:
        uses = await asyncio.to_thread(self._placements.uses_by_job)
        own = uses.pop(self._spec.id, JobUse(0, 0))
        self._perform(self._membership.other_jobs(own, uses, time.monotonic()))

    # --- actions ---

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Record):
                values = dict(action.values)
                self._journal.add(action.kind, action.text, action.level, **values)
            elif isinstance(action, Send):
                self._send(action)
            elif isinstance(action, StartWorker):
                self._keep(self._start_worker(action))
            elif isinstance(action, KillWorker):
                if agent := self._agents.by_node.get(action.node):
                    agent.actor.kill.remote(action.worker)
            elif isinstance(action, SignalWorker):
                if agent := self._agents.by_node.get(action.node):
                    agent.actor.signal.remote(action.worker, action.signal)
            elif isinstance(action, RequestWorker):
                self._keep(self._request(action.worker))
            elif isinstance(action, ReleaseWorker):
                self._keep(self._release(action.worker))
            elif isinstance(action, Finish):
                self._begin_finish(action)

    async def _request(self, worker: str) -> None:
        near = await self._host_of_checkpoint()
        while worker in self._membership.state.workers and self._finish is None:
            try:
                async with self._placing:
                    await asyncio.to_thread(self._placements.request, worker, near)
                return
            except Exception as error:
                _log.info("could not request resources for %s: %s", worker, error)
                await asyncio.sleep(_RETRY_S)

    async def _host_of_checkpoint(self) -> str:
        """Where the first worker finds the job's checkpoint, which may be on no other machine."""
        if self._membership.state.running is not None or not self._spec.has_local_checkpoints:
            return ""
        return await asyncio.to_thread(last_checkpoint_host, self._spec.path)

    async def _release(self, worker: str) -> None:
        async with self._placing:
            await asyncio.to_thread(self._placements.release, worker)

    async def _start_worker(self, action: StartWorker) -> None:
        try:
            agent = self._agent(action.node)
            gpus = await asyncio.to_thread(self._placements.gpu_ids, action.worker)
            await agent.actor.start_worker.remote(
                action.worker, action.rank, action.replicas, action.restarts, gpus
            )
        except Exception as error:
            self._could_not_start(action.worker, error)

    def _could_not_start(self, worker: str, error: Exception) -> None:
        _log.warning("could not start %s: %s", worker, error)
        exit = Exit(signal=signal.SIGTERM, lines=(f"could not be started: {error}",))
        self._perform(self._membership.exited(worker, exit, time.monotonic()))

    def _send(self, action: Send) -> None:
        agent = self._agents.by_node.get(action.node)
        if agent is None:
            return
        message = action.message
        starts_script = isinstance(message, Generation) and action.worker in message.joiners
        source = self._source_of_shared_files(agent) if starts_script else None
        if source is not None:
            self._keep(self._copy_and_send(source, agent, action))
        else:
            agent.actor.deliver.remote(action.worker, message)

    def _source_of_shared_files(self, agent: AgentHandle) -> AgentHandle | None:
        """The agent that has what rank 0 has downloaded, if this one does not have it yet."""
        running = self._membership.state.running
        if running is None or self._spec.share or agent.has_shared_files:
            return None
        source = self._agents.by_node.get(running.nodes[0])
        return source if source is not agent else None

    async def _copy_and_send(self, source: AgentHandle, agent: AgentHandle, action: Send) -> None:
        """The message starts the script of a joiner, which expects these files."""
        try:
            copying = agent.actor.add_shared_files.remote(source.actor.shared_files.remote())
            await asyncio.wait_for(asyncio.wrap_future(copying.future()), _COPY_S)
        except Exception as error:  # one of the two nodes may be lost
            agent.actor.kill.remote(action.worker)
            self._could_not_start(action.worker, error)
            return
        agent.has_shared_files = True
        agent.actor.deliver.remote(action.worker, action.message)

    def _agent(self, node: str) -> AgentHandle:
        if agent := self._agents.by_node.get(node):
            return agent
        agent = self._agents.create(node)
        self._journal.add("agent", node=node, agent=agent.id)
        return agent

    def _record_progress(self, message: Progress) -> None:
        running = self._membership.state.running
        self._notes.stepped(time.monotonic())
        self._progress = {**asdict(message), "workers": len(running.members) if running else 1}
        self._journal.add("progress", **self._progress)

    # --- the end ---

    def _begin_finish(self, finish: Finish) -> None:
        if self._finish is None:
            self._finish = finish
            self._journal.add("finishing", status=finish.status, what=finish.what, why=finish.why)
            self._keep(self._end(finish))

    async def _end(self, finish: Finish) -> None:
        if self._spec.collects_output:
            await self._collect_output()
        await asyncio.to_thread(self._agents.close, _CLOSE_S)
        await asyncio.to_thread(self._placements.release_all)
        values = {**asdict(finish), "output": list(finish.output), "time": time.time()}
        write_atomically(self._spec.path / STATUS_FILE, json.dumps(values))
        level = "info" if finish.status == 0 else "error"
        self._journal.add(
            "end", finish.what, level, status=finish.status, why=finish.why,
            output=list(finish.output),
        )  # fmt: skip
        try:
            await asyncio.wait_for(self._acknowledged.wait(), _LINGER_S)
        except asyncio.TimeoutError:
            _log.info("the end of the job was not read by a follower")
        ray.kill(ray.get_actor(self._spec.actor_name, NAMESPACE))

    async def _collect_output(self) -> None:
        """Fetch what the script saved on the node of rank 0."""
        running = self._membership.state.running
        node = running.nodes[0] if running else next(iter(self._agents.by_node), "")
        if agent := self._agents.by_node.get(node):
            with suppress_and_log(_log, "collect the output", Exception):
                call = agent.actor.output_files.remote()
                archive = await asyncio.wait_for(asyncio.wrap_future(call.future()), _COLLECT_S)
                write_atomically(self._spec.path / OUTPUT_FILE, archive)

    def _keep(self, work: Any) -> None:
        task = asyncio.create_task(self._logged(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _logged(self, work: Any) -> None:
        try:
            await work
        except Exception as error:
            _log.exception("an action failed")
            self._journal.add("note", f"the controller failed in an action: {error}", "error")
