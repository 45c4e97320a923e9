"""Launches, bootstraps and terminates nodes for the controller, with the same pipeline as `up`:
a node that is added later is no different."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from shoal.bootstrap import node_probe
from shoal.bootstrap.pipeline import bootstrap_nodes
from shoal.bootstrap.status_tags import StatusTagger
from shoal.cluster.handle import ClusterHandle
from shoal.controller.host_types import WorkerHost
from shoal.core.batcher import Batcher
from shoal.core.clock import Clock
from shoal.core.concurrency import run_all
from shoal.core.errors import ClaimedError, SetupError, ShoalError, UnreachableError
from shoal.core.events import Emit, Event, LaunchAttempted
from shoal.core.logs import suppress_and_log
from shoal.core.polling import PollUntilDeadline
from shoal.providers.model import Instance, LaunchRequest, State
from shoal.ray_runtime.ray_start import IN_USE_VARIABLE
from shoal.remote.process import run_process
from shoal.remote.runner import Runner, quote
from shoal.remote.scripts import read_script
from shoal.scaling.demand import Resources
from shoal.scaling.inputs import Offering
from shoal.spec.cluster_spec import HostSpec

_log = logging.getLogger(__name__)

_SESSION_CHECK_SECONDS = 20.0
_JOIN_POLL_SECONDS = 2.0
_END_DRIVERS_SECONDS = 20.0
# How long a machine whose Ray was lost may take to reboot. One that does not answer by then has
# failed, and a new one is ready sooner than the time in which a first boot may end.
_REBOOT_SECONDS = 90.0


@dataclass(frozen=True)
class LaunchResult:
    """What a launch returned. When there are fewer instances than requested, `refusal` is the
    provider's reason."""

    instances: Sequence[Instance]
    refusal: str = ""


class NodeManager(Protocol):
    """What the controller can do to instances and nodes. Every call may raise `ShoalError`."""

    @property
    def list_interval_s(self) -> float:
        """How often instances should be listed."""
        ...

    @property
    def worker_hosts(self) -> Mapping[str, WorkerHost] | None:
        """All hosts that can become workers, by id; None where instances are launched."""
        ...

    async def list_instances(self) -> Sequence[Instance]:
        """All instances of the cluster."""
        ...

    async def offerings(self) -> Sequence[Offering]:
        """The instance types, zones, markets and prices that the provider offers."""
        ...

    async def launch(self, request: LaunchRequest) -> LaunchResult:
        """Launch instances. Idempotent: the same token launches the same instances."""
        ...

    async def bootstrap(
        self, instance: Instance, head: Instance, emit: Emit, *, restart: bool
    ) -> ShoalError | None:
        """Bootstrap an instance as a node, and return the error that stopped it. With `restart`,
        stop what a previous bootstrap has left running."""
        ...

    def blames_node_type(self, error: ShoalError) -> bool:
        """Whether a failed setup is likely to fail on every instance of the node type, not only on
        this one."""
        ...

    async def terminate(self, instance: Instance, *, healthy: bool) -> None:
        """Terminate an instance, and return when the provider confirms it. A `healthy` one is
        merely not needed, and may be stopped for reuse where that is cheap."""
        ...

    async def shut_down_cluster(self, instances: Sequence[Instance]) -> None:
        """Terminate or stop the whole cluster, as its file says, this machine included."""
        ...

    async def has_user_sessions(self, gcs_address: str, instances: Sequence[Instance]) -> bool:
        """Whether a command of `exec`, `submit` or `attach` runs on any of these instances."""
        ...

    async def is_head_ray_running(self, head: Instance) -> bool:
        """Whether the head's Ray processes run."""
        ...

    async def restart_head_ray(
        self, head: Instance, workers: Sequence[Instance], emit: Emit
    ) -> None:
        """Stop Ray on the workers, and restart it on the head. Raises the error that prevents
        it."""
        ...


class ProviderNodeManager:
    """The node manager of a real cluster. `disable_autorestart` makes sure that nothing starts the
    controller again on a head that is about to be stopped. `note_shutdown` is called before the
    cluster is shut down."""

    def __init__(
        self,
        cluster: ClusterHandle,
        clock: Clock,
        disable_autorestart: Callable[[], None],
        note_shutdown: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._disable_autorestart = disable_autorestart
        self._note_shutdown = note_shutdown
        self._clock = clock
        self._tagger = StatusTagger(cluster.provider, clock)
        self._terminations = Batcher(self._terminate, clock)
        self._retirements = Batcher(self._retire, clock)
        self._refusals: dict[str, str] = {}

    def on_provider_event(self, event: Event) -> None:
        """Remember why the provider refused an offering."""
        if isinstance(event, LaunchAttempted):
            if event.error:
                _log.info("launch of %s refused: %s", event.node_type, event.error)
            self._refusals[event.node_type] = event.error

    @property
    def list_interval_s(self) -> float:
        return self._cluster.capabilities.list_interval_s

    @property
    def worker_hosts(self) -> Mapping[str, WorkerHost] | None:
        capabilities = self._cluster.capabilities
        if capabilities.hosts is None:
            return None
        detected = capabilities.host_resources() if capabilities.host_resources else {}
        workers = [i for i in capabilities.hosts() if i.role == "worker"]
        return {i.id: self._worker_host(i, detected.get(i.id)) for i in workers}

    def _worker_host(self, host: Instance, detected: Resources | None) -> WorkerHost:
        spec = self._cluster.spec
        own = spec.shoal.hosts.get(host.id, HostSpec())
        declared = {**spec.node_types[host.node_type].resources, **own.resources}
        is_known = detected is not None or "CPU" in declared
        resources = {**(detected or {}), **declared} if is_known else None
        return WorkerHost(host.node_type, resources, own.labels)

    async def list_instances(self) -> Sequence[Instance]:
        return await self._cluster.instances()

    async def offerings(self) -> Sequence[Offering]:
        return await self._cluster.provider.offerings(self._cluster.spec)

    async def launch(self, request: LaunchRequest) -> LaunchResult:
        instances = await self._cluster.launch([request])
        return LaunchResult(instances, self._refusals.pop(request.node_type, ""))

    async def bootstrap(
        self, instance: Instance, head: Instance, emit: Emit, *, restart: bool
    ) -> ShoalError | None:
        if self._cluster.capabilities.workers_start_ray:
            return await self._wait_until_in_ray(instance, head)
        if restart:
            # On a rebooting machine nothing runs, and the pipeline waits until it is reachable.
            with suppress_and_log(_log, f"stop Ray on {instance.name}", ShoalError):
                await self._cluster.stop_ray([instance])
        plan = self._cluster.node_plan(instance, head)
        if restart and self._cluster.capabilities.hosts is None:
            plan = replace(plan, reach_seconds=min(plan.reach_seconds, _REBOOT_SECONDS))
        head_plan = self._cluster.node_plan(head, head)
        emit = self._tagger.wrap([instance], emit)
        failures = await bootstrap_nodes([plan], head_plan, emit, self._clock)
        return failures.get(instance.name)

    async def _wait_until_in_ray(self, instance: Instance, head: Instance) -> ShoalError | None:
        """Wait for an instance that starts Ray by itself."""
        timeout = self._cluster.capabilities.boot_timeout(instance)
        async for _ in PollUntilDeadline(self._clock, timeout, _JOIN_POLL_SECONDS):
            with suppress_and_log(_log, "list Ray's nodes", ShoalError, TimeoutError):
                if instance.id in await self._cluster.list_nodes(head):
                    return None
        return SetupError(
            f"it has not joined Ray within {timeout:.0f} s",
            why="its provider starts Ray on it (disable_node_updaters), and no node in Ray has "
            f"RAY_CLOUD_INSTANCE_ID={instance.id}",
            fix="have what starts Ray on the node set RAY_CLOUD_INSTANCE_ID to its node id",
            node=instance.name,
        )

    def blames_node_type(self, error: ShoalError) -> bool:
        # One host that is off, or claimed by another cluster, is no reason to leave the others
        # unused.
        is_host_list = self._cluster.capabilities.hosts is not None
        return not (is_host_list and isinstance(error, (UnreachableError, ClaimedError)))

    async def terminate(self, instance: Instance, *, healthy: bool) -> None:
        if self._cluster.capabilities.terminates_in_batches:
            await (self._retirements if healthy else self._terminations).submit(instance)
        else:
            await self._terminate([instance])

    async def _retire(self, instances: Sequence[Instance]) -> None:
        stop_or_terminate = self._cluster.capabilities.stop_or_terminate
        if stop_or_terminate is None:
            await self._terminate(instances)
        else:
            await stop_or_terminate(self._cluster.spec, instances)

    async def _terminate(self, instances: Sequence[Instance]) -> None:
        await self._cluster.terminate(instances)

    async def shut_down_cluster(self, instances: Sequence[Instance]) -> None:
        cluster = self._cluster
        workers = [i for i in instances if i.role == "worker"]
        head = [i for i in instances if i.role == "head"]
        self._note_shutdown()
        # The head last: nothing else would terminate the workers.
        if cluster.spec.shoal.down == "stop":
            await cluster.stop(workers)
            await run_all(self._mark_stopped(i) for i in instances)
            self._disable_autorestart()
            await cluster.stop(head)
            return
        await cluster.terminate(workers)
        await cluster.terminate(head)
        # Not reached where the head terminates itself; then `down` releases the resources.
        await cluster.release()

    async def has_user_sessions(self, gcs_address: str, instances: Sequence[Instance]) -> bool:
        if await is_in_use_here(gcs_address):
            return True
        cluster = self._cluster
        if cluster.capabilities.shares_this_machine:
            return False  # all nodes run on this machine
        runners: list[Runner] = []
        for instance in instances:
            if instance.state is State.RUNNING and not self._starts_ray(instance):
                runners.append(cluster.runner(instance))
                if cluster.spec.container_for(instance.node_type, instance.role) is not None:
                    runners.append(cluster.node_runner(instance))
        return await is_in_use_on_any(runners, gcs_address)

    def _starts_ray(self, instance: Instance) -> bool:
        return self._cluster.capabilities.workers_start_ray and instance.role == "worker"

    async def _mark_stopped(self, instance: Instance) -> None:
        cluster = self._cluster
        if cluster.capabilities.stops_instances:
            return  # the provider reports it as stopped
        container = cluster.spec.container_for(instance.node_type, instance.role)
        with suppress_and_log(_log, f"mark {instance.name} as stopped", ShoalError):
            await node_probe.mark_stopped(cluster.runner(instance), instance, container)

    async def is_head_ray_running(self, head: Instance) -> bool:
        plan = self._cluster.node_plan(head, head)
        return (await node_probe.probe(plan.runner, head, plan.setup.container)).ray_runs

    async def restart_head_ray(
        self, head: Instance, workers: Sequence[Instance], emit: Emit
    ) -> None:
        # As long as a raylet of the old cluster runs, Ray refuses to start a head at its address.
        with suppress_and_log(_log, "stop Ray on the workers", ShoalError):
            running = [i for i in workers if i.state is State.RUNNING]
            await self._cluster.stop_ray([i for i in running if not self._starts_ray(i)])
        await self._cluster.stop_ray([head])
        plan = self._cluster.node_plan(head, head, "restart")
        with suppress_and_log(_log, "end the drivers on the head", ShoalError, TimeoutError):
            drivers = _session_script("end_drivers.sh", plan.start.gcs_address)
            await plan.node_runner.run(
                quote(drivers), timeout=_END_DRIVERS_SECONDS, skip_profile=True
            )
        emit = self._tagger.wrap([head], emit)
        failures = await bootstrap_nodes([plan], plan, emit, self._clock)
        if head.name in failures:
            raise failures[head.name]


async def is_in_use_here(gcs_address: str) -> bool:
    """Whether a user session of the cluster with this GCS runs on this machine."""
    try:
        return (await run_process(_session_check(gcs_address), timeout=_SESSION_CHECK_SECONDS)).ok
    except TimeoutError:
        return True  # a busy machine is no reason to end a session


async def is_in_use_on_any(runners: Sequence[Runner], gcs_address: str) -> bool:
    """Whether a user session of the cluster runs on any of these machines. One that does not
    answer cannot have a usable session."""

    async def is_in_use(runner: Runner) -> bool:
        try:
            await runner.connect(timeout=_SESSION_CHECK_SECONDS)
            command = quote(_session_check(gcs_address))
            return (await runner.run(command, timeout=_SESSION_CHECK_SECONDS)).ok
        except (ShoalError, TimeoutError) as error:
            _log.debug("could not look for user sessions: %s", error)
            return False

    return any(await run_all(is_in_use(runner) for runner in runners))


def _session_check(gcs_address: str) -> list[str]:
    return _session_script("find_user_sessions.sh", gcs_address)


def _session_script(name: str, gcs_address: str) -> list[str]:
    """A script about the user sessions of the cluster with this GCS."""
    script = read_script("shoal.controller.scripts", name)
    return ["sh", "-c", script, name, IN_USE_VARIABLE, gcs_address]
