"""Runs the bootstrap steps of several nodes in parallel, one pipeline per node.

There are no barriers between nodes. A worker waits only for what the head provides: its
credentials, the files that the head relays, and in the last step its GCS.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from shoal.bootstrap import (
    applied_state,
    baking,
    file_sync,
    node_probe,
    steps,
    version_mismatch,
    volumes,
)
from shoal.bootstrap.applied_state import AppliedState
from shoal.bootstrap.containers import node_container
from shoal.bootstrap.file_sync import HeadRelay
from shoal.bootstrap.head_artifacts import HeadArtifacts
from shoal.bootstrap.node_plan import NodePlan
from shoal.bootstrap.node_probe import NodeProbe
from shoal.bootstrap.ray_restart import NotRestartedError
from shoal.bootstrap.steps import NodeReporter
from shoal.core.clock import Clock
from shoal.core.concurrency import run_all
from shoal.core.errors import SetupError, ShoalError, UnreachableError
from shoal.core.events import Emit
from shoal.core.logs import suppress_and_log
from shoal.core.node_phase import Phase
from shoal.ray_runtime import cluster_secrets
from shoal.ray_runtime.ray_start import timed_out_at_start
from shoal.ray_runtime.start_commands import without_ray_stop
from shoal.remote.runner import Runner

_log = logging.getLogger(__name__)

Failures = dict[str, ShoalError]
T = TypeVar("T")

# How often a step is tried if the connection breaks while it runs.
_STEP_TRIES = 3


async def bootstrap_nodes(
    plans: Sequence[NodePlan],
    head: NodePlan,
    emit: Emit,
    clock: Clock,
    *,
    on_ray_runs: Callable[[], Awaitable[None]] | None = None,
) -> Failures:
    """Bootstrap these nodes in parallel, and return the failures by node name. A node that fails
    does not hold up the others, unless it is the head. `head` is the plan of the cluster's head,
    whether or not it is one of `plans`. `on_ray_runs` is called as soon as the head's Ray runs,
    before its start command returns, and while workers start."""
    artifacts = HeadArtifacts(head, plans)
    failures: Failures = {}

    async def bootstrap(plan: NodePlan) -> None:
        reporter = NodeReporter(plan.instance, emit)
        try:
            await _NodePipeline(plan, artifacts, reporter, clock).run()
        except ShoalError as error:
            _log.info("%s: bootstrap failed: %s", plan.instance.name, error)
            failures[plan.instance.name] = error
            is_unchanged = isinstance(error, NotRestartedError) and plan.stops_ray
            reporter.phase(Phase.READY if is_unchanged else Phase.FAILED, str(error))
            artifacts.ray_restart.give_up(plan.instance.name)
            if plan.instance.role == "head":
                artifacts.set_head_failed()

    async def after_ray_runs() -> None:
        if on_ray_runs is not None:
            with suppress_and_log(_log, "wait for the head", ShoalError):
                await asyncio.shield(artifacts.ray_runs)
                await on_ray_runs()

    await run_all([*(bootstrap(plan) for plan in plans), after_ray_runs()])
    return failures


class _NodePipeline:
    """The steps of one node, in order. Each can be repeated, and is when the connection breaks.

    `_probe` is the state of the node after its files are synced. `_is_initialized` is whether the
    initialization commands ran, `_has_new_container` whether the container was created by this
    run, so that nothing was applied in it yet, `_ran_setup` whether the setup commands ran.
    `_head_key_installed` is set when the head can log in to this node.
    """

    def __init__(
        self, plan: NodePlan, artifacts: HeadArtifacts, reporter: NodeReporter, clock: Clock
    ) -> None:
        self._plan = plan
        self._artifacts = artifacts
        self._reporter = reporter
        self._clock = clock
        self._is_head = plan.instance.role == "head"
        self._probe = NodeProbe()
        self._is_initialized = False
        self._has_new_container = False
        self._ran_setup = False
        self._head_key_installed = asyncio.Event()

    async def run(self) -> None:
        plan, artifacts = self._plan, self._artifacts
        await plan.runner.connect(timeout=plan.reach_seconds)
        self._reporter.phase(Phase.REACHABLE)
        if plan.claim:
            await self._step("claim", lambda: steps.claim(plan.runner, plan.claim, self._reporter))
        if plan.stops_ray and artifacts.ray_restart.stops_first:
            await self._stop_ray()
        try:
            if self._is_head:  # one after the other: both are short, and share a session
                await self._share_credentials()
                await self._probe_and_sync()
            else:  # which waits for the head's credentials
                await run_all([self._share_credentials(), self._probe_and_sync()])
        finally:
            if self._is_head and not artifacts.file_sync_seconds.done():
                artifacts.file_sync_seconds.set_result(None)
        if plan.bake is None:
            await self._store_secrets()
        if plan.interruption_agent:  # it may be interrupted before it is ready
            await self._start_agent("interruption agent", plan.interruption_agent)
        probe = self._probe
        if plan.mode != "restart" or self._has_new_container:
            probe = await self._set_up(probe)
        if self._is_head:
            artifacts.is_set_up.set_result(None)
        if plan.bake is not None:
            if self._ran_setup and not probe.has_any_ray:
                await baking.bake(plan, probe.applied_state, self._reporter)
            await self._store_secrets()
        if plan.mode != "update" or not probe.ray_runs:
            await self._start(probe)
        if self._is_head:
            artifacts.set_ray_runs()
            artifacts.is_up.set_result(None)
        self._reporter.phase(Phase.READY)

    async def _share_credentials(self) -> None:
        if not self._plan.start.shares_credentials:
            return
        if self._is_head:
            await self._step("create credentials", self._artifacts.create_credentials)
        else:
            credentials = await asyncio.shield(self._artifacts.credentials)
            # The token must not be in an image.
            accept = (
                cluster_secrets.accept_credentials
                if self._plan.bake is None
                else cluster_secrets.trust_head
            )
            await self._step("accept credentials", lambda: accept(self._plan.runner, credentials))
            self._head_key_installed.set()

    async def _store_secrets(self) -> None:
        """Store the secrets that an image must not contain on the disk, and in the container."""
        plan = self._plan
        if not plan.start.shares_credentials:
            return
        if plan.bake is not None and self._is_head:
            await self._step(
                "store credentials", lambda: cluster_secrets.store_credentials(plan.runner)
            )
        elif plan.bake is not None:
            credentials = await asyncio.shield(self._artifacts.credentials)
            await self._step(
                "store credentials",
                lambda: cluster_secrets.accept_credentials(plan.runner, credentials),
            )
        if plan.container is not None:
            container = plan.container
            await self._step(
                "copy secrets", lambda: node_container.copy_secrets(plan.runner, container)
            )

    async def _probe_and_sync(self) -> None:
        """Probe the node, mount its volumes, ensure its container, and sync its files if they
        differ. The applied state is written before and after each change, so that an interrupted
        bootstrap is never taken for a complete one."""
        plan = self._plan
        probe = await self._mount_volumes(await self._read_probe())
        probe = self._probe = await self._ensure_container(probe)
        if (
            (plan.mode == "restart" and not self._has_new_container)
            or probe.applied_state.files == plan.desired_state.files
            or not plan.files.mounts
        ):
            return
        from_head = await self._should_sync_from_head()
        self._reporter.phase(Phase.PREPARING, "syncing files")
        kept = probe.applied_state.setup if baking.is_baked(plan, probe.applied_state) else ""
        unfinished = replace(probe.applied_state, files="", setup=kept)
        if probe.applied_state != unfinished:
            await self._write(unfinished)
        if plan.container is not None:
            container = plan.container
            await self._step(
                "create mount directories",
                lambda: node_container.create_mount_dirs(plan.runner, container, plan.files),
            )
        started = self._clock.monotonic()
        if from_head:
            relayable = self._artifacts.relayable
            async with self._artifacts.relay_slots:
                await self._step(
                    "relay files",
                    lambda: self._relay().relay(plan.files, relayable, self._report_fallback),
                )
        else:
            await self._step("send files", lambda: file_sync.send(plan.node_runner, plan.files))
        if self._is_head:
            self._artifacts.file_sync_seconds.set_result(self._clock.monotonic() - started)

    async def _read_probe(self) -> NodeProbe:
        plan = self._plan
        mount_points = volumes.mount_points(plan.volumes)
        return await self._step(
            "probe",
            lambda: node_probe.probe(
                plan.runner, plan.instance, plan.setup.container, mount_points
            ),
        )

    async def _mount_volumes(self, probe: NodeProbe) -> NodeProbe:
        """Mount the volumes, before anything is written to the node."""
        plan = self._plan
        if plan.mode == "restart" or probe.applied_state.volumes == plan.desired_state.volumes:
            return probe
        if probe.ray_runs and plan.mode != "update":  # it may use what is mounted over
            await self._stop_ray()
        if plan.volumes:
            self._reporter.phase(Phase.PREPARING, "mounting volumes")
            await self._step(
                "mount volumes",
                lambda: volumes.mount(plan.runner, plan.volumes, plan.instance.name),
            )
            # The container may have been on a disk that Docker no longer uses.
            probe = await self._read_probe()
        state = replace(probe.applied_state, volumes=plan.desired_state.volumes)
        await self._write(state)
        return replace(probe, applied_state=state)

    def _report_fallback(self, error: ShoalError) -> None:
        self._reporter.phase(Phase.PREPARING, f"syncing files directly: {error.what}")

    async def _should_sync_from_head(self) -> bool:
        """Whether this worker gets large files from the head. It waits until the head has them:
        it would have to wait for the head later anyway."""
        plan, artifacts = self._plan, self._artifacts
        if self._is_head or not plan.start.shares_credentials or not artifacts.relayable:
            return False
        if not artifacts.file_sync_seconds.done():
            self._reporter.phase(Phase.PREPARING, "waiting for files on the head")
        seconds = await asyncio.shield(artifacts.file_sync_seconds)
        if seconds is None or not file_sync.should_relay(
            artifacts.relayable, seconds, artifacts.workers
        ):
            return False
        await self._head_key_installed.wait()
        return True

    async def _ensure_container(self, probe: NodeProbe) -> NodeProbe:
        """Create, restart or remove the node's container as the plan requires. Nothing is applied
        yet in a new container."""
        plan, container = self._plan, self._plan.container
        # An outdated container stays unless the mode is `full`.
        keeps = container is not None and plan.mode != "full" and probe.applied_state.container
        if keeps or probe.applied_state.container == plan.desired_state.container:
            if container is not None and not probe.container_runs:
                stopped = container
                await self._step(
                    "restart container",
                    lambda: node_container.restart(plan.runner, stopped, self._reporter),
                )
            return probe
        bare = AppliedState(volumes=probe.applied_state.volumes)
        await self._write(bare)
        if container is None:
            await self._step(
                "remove container", lambda: node_container.remove(plan.runner, plan.instance)
            )
            return NodeProbe(bare)
        await self._initialize()
        new = container
        await self._step(
            "create container",
            lambda: node_container.create(
                plan.runner, new, self._reporter, seconds=plan.command_seconds
            ),
        )
        self._has_new_container = True
        return NodeProbe(replace(bare, container=container.digest), container_runs=True)

    async def _initialize(self) -> None:
        """Run the initialization commands on the host, once."""
        if not self._is_initialized:
            plan = self._plan
            if plan.first_boot_wait:
                wait = functools.partial(
                    steps.wait_for_first_boot, plan.runner, plan.first_boot_wait, self._reporter
                )
                await self._step("wait for the first boot", wait)
            commands = plan.setup.initialization_commands
            await self._run(commands, "initialization", plan.runner, tries=2)
        self._is_initialized = True

    async def _set_up(self, probe: NodeProbe) -> NodeProbe:
        """Run initialization and setup commands if they or the files have changed."""
        plan, desired = self._plan, self._plan.desired_state
        state = probe.applied_state
        if baking.is_baked(plan, state):
            state = replace(state, files=desired.files, setup=desired.setup)
        if state.files != desired.files:
            state = replace(state, files=desired.files, setup="")
        if plan.files.cluster_synced and not self._is_head:
            self._reporter.phase(Phase.PREPARING, "waiting for files on the head")
            await asyncio.shield(self._artifacts.is_set_up)
            await self._step("copy files from the head", self._copy_from_head)
        if state.setup != desired.setup:
            self._reporter.phase(Phase.PREPARING, "running setup commands")
            await self._initialize()
            await self._run(plan.setup.setup_commands, "setup", plan.node_runner, tries=2)
            self._ran_setup = True
            state = replace(state, files=desired.files, setup=desired.setup)
        if state != probe.applied_state:
            if plan.stops_ray:  # until it is restarted, the old Ray runs
                state = replace(state, start="")
            await self._write(state)
        return replace(probe, applied_state=state)

    async def _stop_ray(self) -> None:
        stop = self._plan.stop_ray
        if stop is not None:
            self._reporter.phase(Phase.PREPARING, "stopping Ray")
            await self._step("stop Ray", stop)

    async def _stop_old_ray(self, probe: NodeProbe) -> bool:
        """Stop a Ray that runs, when it is time to: see `RayRestart`. Also what is left of one that
        has died in part: a head does not start beside its old raylet. Returns whether another one
        runs."""
        restart, name = self._artifacts.ray_restart, self._plan.instance.name
        has_other_ray = probe.has_any_ray
        await restart.wait_until_prepared(name)
        if probe.has_ray_daemons:
            await self._stop_ray()
            has_other_ray = (await self._read_probe()).has_any_ray
        await restart.wait_until_stopped(name)
        return has_other_ray

    async def _start(self, probe: NodeProbe) -> None:
        plan = self._plan
        if probe.applied_state.start == applied_state.STOPPED:
            # From here on Ray is meant to run, even if starting it fails.
            await self._write(replace(probe.applied_state, start=""))
        has_other_ray = await self._stop_old_ray(probe)
        if not self._is_head:
            self._reporter.phase(Phase.PREPARING, "waiting for the head")
            await self._wait_for_gcs()
        self._reporter.phase(Phase.STARTING)
        commands: Sequence[str] = plan.start.commands
        if not has_other_ray:
            commands = without_ray_stop(commands)
        # `ray start` returns when the node has registered with the head's GCS.
        watching = asyncio.ensure_future(self._watch_for_ray())
        try:
            await self._start_ray(commands)
        except SetupError as error:
            if self._is_head:
                raise
            raise await version_mismatch.explain(error, plan, self._artifacts.head) from None
        finally:
            watching.cancel()
            await asyncio.wait([watching])
        # One after the other: each is shorter than the start of a second session.
        await self._step("find Ray's Python", self._find_python)
        if plan.lease_agent:
            await self._start_agent("lease agent", plan.lease_agent)
        await self._write(replace(probe.applied_state, start=plan.desired_state.start))

    async def _start_ray(self, commands: Sequence[str]) -> None:
        """Run the start commands, once more if Ray gave up because the node was too slow."""
        runner = self._plan.node_runner
        try:
            await self._run(commands, "start", runner, tries=1)
        except SetupError as error:
            if not timed_out_at_start(error.output):
                raise
            _log.info("%s: Ray timed out at its start: starting it again", self._reporter.node)
            await self._stop_ray()
            self._reporter.phase(Phase.STARTING, "again: Ray timed out")
            await self._run(commands, "start", runner, tries=1)

    async def _watch_for_ray(self) -> None:
        """Report that the head's Ray runs, which is seconds before its start command returns."""
        if self._is_head:
            with suppress_and_log(_log, "watch for Ray", ShoalError, TimeoutError):
                if await steps.wait_for_raylet(self._plan.node_runner, self._plan.instance.id):
                    self._artifacts.set_ray_runs()

    async def _find_python(self) -> None:
        """Have the node remember the Python that its Ray runs with."""
        plan = self._plan
        if plan.start.find_python:
            await steps.find_python(plan.node_runner, plan.start, self._reporter.node)

    async def _start_agent(self, name: str, command: str) -> None:
        plan = self._plan
        await self._step(
            f"start the {name}",
            lambda: steps.start_agent(plan.runner, name, command, plan.start.env),
        )

    async def _wait_for_gcs(self) -> None:
        """Wait, on the worker itself, for the head's GCS port: it must be reachable from here."""
        address, is_up = self._plan.start.gcs_address, self._artifacts.is_up
        await steps.wait_for_gcs(self._plan.node_runner, address, is_up)

    async def _copy_from_head(self) -> None:
        for path in self._plan.files.cluster_synced:
            await self._relay().copy(path, "it is listed in cluster_synced_files")

    def _relay(self) -> HeadRelay:
        plan = self._plan
        return HeadRelay(
            self._artifacts.head.node_runner,
            plan.node_runner,
            plan.instance,
            plan.command_seconds,
            None if plan.container is None else plan.container.container,
            worker_host=plan.runner,
        )

    async def _run(
        self, commands: Sequence[str], title: str, runner: Runner, *, tries: int
    ) -> None:
        plan = self._plan
        for number, command in enumerate(commands, start=1):
            name = f"{title} command {number} of {len(commands)}"
            action = functools.partial(
                steps.run_command,
                runner,
                name,
                plan.start.with_prelude(command),
                command,
                self._reporter,
                self._clock,
                env=plan.start.env,
                seconds=plan.command_seconds,
                tries=tries,
            )
            await self._step(name, action)

    async def _write(self, state: AppliedState) -> None:
        await self._step(
            "write applied state", lambda: applied_state.write(self._plan.runner, state)
        )

    async def _step(self, name: str, action: Callable[[], Awaitable[T]]) -> T:
        """Run one step, again if the connection breaks."""
        node = self._reporter.node
        _log.debug("%s: %s: started", node, name)
        try:
            for _ in range(_STEP_TRIES - 1):
                try:
                    result = await action()
                except UnreachableError as error:
                    _log.info("%s: %s: connection lost, reconnecting: %s", node, name, error)
                    self._reporter.phase(Phase.PREPARING, f"reconnecting: {error.what}")
                    await self._plan.runner.connect(timeout=self._plan.reach_seconds)
                else:
                    break
            else:
                result = await action()
        except TimeoutError as error:
            _log.info("%s: %s: timed out: %s", node, name, error)
            raise steps.timeout_error(error, node) from None
        except ShoalError as error:
            _log.info("%s: %s: failed: %s", node, name, error)
            raise
        _log.debug("%s: %s: finished", node, name)
        return result
