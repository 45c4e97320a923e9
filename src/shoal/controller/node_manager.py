"""Makes machines nodes, and gives them back: the controller's hands on a real cluster. The same
pipeline as `up`, so a node that came later is no different."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from shoal.bootstrap import node_probe
from shoal.bootstrap.pipeline import bootstrap_nodes
from shoal.bootstrap.status_tags import StatusTagger
from shoal.cluster.handle import ClusterHandle
from shoal.controller import user_activity
from shoal.controller.batcher import Batcher
from shoal.core.clock import Clock
from shoal.core.concurrency import run_all
from shoal.core.errors import ClaimedError, ShoalError, UnreachableError
from shoal.core.events import Emit, Event, LaunchAttempted
from shoal.providers.model import Instance, LaunchRequest, State
from shoal.remote.runner import Runner
from shoal.scaling.inputs import Offering


@dataclass(frozen=True)
class LaunchResult:
    """What came of asking for machines; when they are fewer than wished for, `refusal` says what
    the provider had to say."""

    instances: Sequence[Instance]
    refusal: str = ""


class NodeManager(Protocol):
    """What the controller can have done. Everything may raise `ShoalError`."""

    @property
    def list_interval_s(self) -> float:
        """How often `find` is worth calling."""
        ...

    @property
    def worker_hosts(self) -> Collection[str] | None:
        """The ids of all hosts that can become workers; None where instances are launched."""
        ...

    async def find(self) -> Sequence[Instance]:
        """All machines of the cluster."""
        ...

    async def offers(self) -> Sequence[Offering]:
        """What can be bought, and what it will have."""
        ...

    async def create(self, launch: LaunchRequest) -> LaunchResult:
        """Ask for machines; asking again with the same token asks for the same ones."""
        ...

    async def bring_up(
        self, instance: Instance, head: Instance, emit: Emit, *, anew: bool
    ) -> ShoalError | None:
        """Make a machine a node, and return what stopped it. `anew` means that someone may have
        been at it before: whatever runs there is ended first."""
        ...

    def is_of_the_type(self, error: ShoalError) -> bool:
        """Whether a failed setup says something of all machines of its type, and not of the one
        machine only."""
        ...

    async def end(self, instance: Instance, *, healthy: bool) -> None:
        """Give a machine back, and return when its provider says that it is gone. One that is
        `healthy` is only not needed, and may be kept for later where that is cheap."""
        ...

    async def give_back(self, instances: Sequence[Instance]) -> None:
        """End the whole cluster, or switch it off, as its file says; the machine on which this runs
        included."""
        ...

    async def is_attended(self, gcs_address: str, instances: Sequence[Instance]) -> bool:
        """Whether a person's program or shell runs on any of these machines."""
        ...

    async def head_runs(self, head: Instance) -> bool:
        """Whether the head's Ray runs, by the machine's own account."""
        ...

    async def revive(self, head: Instance, emit: Emit) -> None:
        """Start the head's Ray again. Raises what stands in the way."""
        ...


class ProviderNodeManager:
    """The workshop of a running cluster. `take_leave` has nobody start the controller again, for a
    head that is about to be switched off."""

    def __init__(
        self, cluster: ClusterHandle, clock: Clock, take_leave: Callable[[], None]
    ) -> None:
        self._cluster = cluster
        self._take_leave = take_leave
        self._clock = clock
        self._board = StatusTagger(cluster.provider, clock)
        self._endings = Batcher(self._terminate, clock)
        self._retirings = Batcher(self._retire, clock)
        self._refusals: dict[str, str] = {}

    def hear(self, event: Event) -> None:
        """Take note of what the provider tells on its way."""
        if isinstance(event, LaunchAttempted):
            self._refusals[event.node_type] = event.error

    @property
    def list_interval_s(self) -> float:
        return self._cluster.capabilities.list_interval_s

    @property
    def worker_hosts(self) -> Collection[str] | None:
        hosts = self._cluster.capabilities.hosts
        return None if hosts is None else {i.id for i in hosts() if i.role == "worker"}

    async def find(self) -> Sequence[Instance]:
        return await self._cluster.instances()

    async def offers(self) -> Sequence[Offering]:
        return await self._cluster.provider.offerings(self._cluster.spec)

    async def create(self, launch: LaunchRequest) -> LaunchResult:
        instances = await self._cluster.provider.launch(self._cluster.spec, [launch])
        return LaunchResult(instances, self._refusals.pop(launch.node_type, ""))

    async def bring_up(
        self, instance: Instance, head: Instance, emit: Emit, *, anew: bool
    ) -> ShoalError | None:
        if anew:
            # A machine that is just rebooting has nothing to halt, and the pipeline waits for it.
            with contextlib.suppress(ShoalError):
                await self._cluster.stop_ray([instance])
        work = self._cluster.node_plan(instance, head)
        heard = self._board.wrap([instance], emit)
        failures = await bootstrap_nodes(
            [work], self._cluster.node_plan(head, head), heard, self._clock
        )
        return failures.get(instance.name)

    def is_of_the_type(self, error: ShoalError) -> bool:
        # A machine of one's own that is switched off, or another cluster's, is no reason to leave
        # the others unused.
        is_host_list = self._cluster.capabilities.hosts is not None
        return not (is_host_list and isinstance(error, (UnreachableError, ClaimedError)))

    async def end(self, instance: Instance, *, healthy: bool) -> None:
        if self._cluster.capabilities.terminates_in_batches:
            await (self._retirings if healthy else self._endings).ask(instance)
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

    async def give_back(self, instances: Sequence[Instance]) -> None:
        cluster = self._cluster
        workers = [i for i in instances if i.role == "worker"]
        head = [i for i in instances if i.role == "head"]
        # The head last: without it nobody is left to end the others.
        if cluster.spec.shoal.down == "stop":
            await cluster.stop(workers)
            await run_all(self._mark_stopped(i) for i in instances)
            self._take_leave()
            await cluster.stop(head)
            return
        await cluster.terminate(workers)
        await cluster.terminate(head)
        # Where the head could end itself, nobody is here any more; `down` then releases.
        await cluster.release()

    async def is_attended(self, gcs_address: str, instances: Sequence[Instance]) -> bool:
        if await user_activity.is_here(gcs_address):
            return True
        cluster = self._cluster
        if cluster.capabilities.shares_this_machine:
            return False  # all of its machines are this one
        ways: list[Runner] = []
        for instance in instances:
            if instance.state is State.RUNNING:
                ways.append(cluster.runner(instance))
                if cluster.spec.container_for(instance.node_type, instance.role) is not None:
                    ways.append(cluster.node_runner(instance))
        return await user_activity.is_at_any(ways, gcs_address)

    async def _mark_stopped(self, instance: Instance) -> None:
        cluster = self._cluster
        if cluster.capabilities.stops_instances:
            return  # its provider reports it as stopped
        container = cluster.spec.container_for(instance.node_type, instance.role)
        with contextlib.suppress(ShoalError):
            await node_probe.mark_stopped(cluster.runner(instance), instance, container)

    async def head_runs(self, head: Instance) -> bool:
        work = self._cluster.node_plan(head, head)
        return (await node_probe.probe(work.runner, head, work.setup.container)).ray_runs

    async def revive(self, head: Instance, emit: Emit) -> None:
        await self._cluster.stop_ray([head])
        work = self._cluster.node_plan(head, head, "restart")
        failures = await bootstrap_nodes([work], work, self._board.wrap([head], emit), self._clock)
        if head.name in failures:
            raise failures[head.name]
