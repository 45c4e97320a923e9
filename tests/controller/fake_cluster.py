"""A fake provider, Ray and clock for the controller, and a harness that runs the controller on
them. All of it is plain data, and every fault is one assignment."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from shoal.controller import status_file
from shoal.controller.controller_config import ControllerConfig
from shoal.controller.host_types import WorkerHost
from shoal.controller.loop import Controller, Dependencies
from shoal.controller.node_manager import LaunchResult
from shoal.controller.paths import CONFIG, STATE
from shoal.controller.state import ControllerState
from shoal.controller.status_file import ControllerStatus
from shoal.core.errors import (
    IncompleteError,
    SetupError,
    ShoalError,
    TransientError,
    UnreachableError,
)
from shoal.core.events import Emit, NodeChanged
from shoal.core.node_phase import Phase
from shoal.providers.model import Instance, LaunchRequest, State
from shoal.ray_runtime.gcs_client import (
    FailedLaunch,
    GcsReading,
    PendingInstance,
    RequestedInstances,
)
from shoal.ray_runtime.nodes import RayNode
from shoal.scaling import Demand, Request, Shape
from shoal.scaling.inputs import Market, Offering
from shoal.spec.cluster_spec import ClusterSpec
from tests.specs import cluster

# For the threads that an iteration starts, which may be slow on a busy machine.
_TASKS_SECONDS = 5.0


class Killed(BaseException):
    """The controller's process was killed here."""


@dataclass
class FakeCluster:
    """Instances, Ray's view of them, the demand, and the faults to inject. It is the controller's
    clock, GCS and node manager.

    `busy` are nodes whose resources are in use, `actors` those with actors that use none.
    `cut_off` are nodes that no packet reaches.
    `setup_gate` holds every bootstrap until it is set; `in_setup` counts the bootstraps it holds.
    """

    time: float = 1000.0
    instances: dict[str, Instance] = field(default_factory=dict)
    ray: dict[str, RayNode] = field(default_factory=dict)
    demand: Demand = field(default_factory=Demand)
    tokens: dict[str, list[str]] = field(default_factory=dict)
    launch_requests: list[LaunchRequest] = field(default_factory=list)
    pending: list[PendingInstance | RequestedInstances] = field(default_factory=list)
    refusals: dict[str, ShoalError] = field(default_factory=dict)
    max_per_launch: int = 1000
    setup_failures: int = 0
    setup_gate: asyncio.Event | None = None
    in_setup: int = 0
    busy: set[str] = field(default_factory=set)
    actors: set[str] = field(default_factory=set)
    cut_off: set[str] = field(default_factory=set)
    drained: dict[str, float] = field(default_factory=dict)
    gcs_unreachable: bool = False
    drains_fail: bool = False
    head_ray_dead: bool = False
    restart_error: ShoalError | None = None
    restart_gate: asyncio.Event | None = None
    list_error: Exception | None = None
    shutdown_error: Exception | None = None
    driver_connected: bool = False
    pinned_nodes: set[str] = field(default_factory=set)
    user_sessions: bool = False
    bootstrapped: list[str] = field(default_factory=list)
    kill_during_launch: bool = False
    market: Market = "on-demand"
    zone: str = ""
    offered: list[Offering] | None = None
    worker_hosts: dict[str, WorkerHost] | None = None
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self.add_instance("head", "head", "head")
        self.join("head")

    # clock

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.time += seconds
        await asyncio.sleep(0)

    # GCS

    def read(self) -> GcsReading:
        if self.gcs_unreachable or self.head_ray_dead:
            raise TransientError("Ray on the head does not answer")
        # A raylet that drains exits when nothing runs on it any more.
        self.ray = {
            i: n for i, n in self.ray.items() if n.status != "draining" or self._is_in_use(n)
        }
        nodes = {id: self._reported(node) for id, node in self.ray.items()}
        return GcsReading(nodes, self.demand, version=1)

    def drain_idle(self, ray_id: str, why: str) -> tuple[bool, str]:
        if self.drains_fail:
            raise TransientError("Ray on the head does not answer")
        if self._is_in_use(self.ray[ray_id]):
            return False, "busy"
        self.ray[ray_id] = replace(self.ray[ray_id], status="draining")
        return True, ""

    def drain_by_deadline(self, ray_id: str, why: str, deadline: float) -> tuple[bool, str]:
        if self.gcs_unreachable:
            raise TransientError("Ray on the head does not answer")
        self.drained[ray_id] = deadline
        if ray_id in self.ray:
            self.ray[ray_id] = replace(self.ray[ray_id], status="draining")
        return True, ""

    def report(
        self,
        version: int,
        pending: Sequence[PendingInstance | RequestedInstances],
        failed: Sequence[FailedLaunch] = (),
    ) -> None:
        self.pending = list(pending)

    def has_drivers(self) -> bool:
        return self.driver_connected

    def nodes_with_actors(self) -> set[str]:
        return self.pinned_nodes

    def join(self, id: str) -> None:
        """Add an instance to Ray."""
        instance = self.instances[id]
        total = {"CPU": 0.0 if id == "head" else 1.0}
        if self.worker_hosts and id in self.worker_hosts:
            total = dict(self.worker_hosts[id].resources or total)
        self.ray[id] = RayNode(
            id, id, instance.address, instance.node_type, "idle", 0.0, total, dict(total)
        )

    def set_idle(self, id: str, seconds: float) -> None:
        """Have Ray report a node as idle for this long."""
        self.ray[id] = replace(self.ray[id], idle_s=seconds)

    def set_pending_tasks(self, count: int) -> None:
        """Have Ray report this many pending tasks of one CPU."""
        self.demand = Demand((Request(Shape.of({"CPU": 1.0}), count),)) if count else Demand()

    def _is_in_use(self, node: RayNode) -> bool:
        in_use = node.available != node.total
        return in_use or node.ray_id in self.busy or node.ray_id in self.actors

    def _reported(self, node: RayNode) -> RayNode:
        if not self._is_in_use(node):
            return node
        available = {} if node.ray_id in self.busy else node.available
        if node.status == "draining":
            return replace(node, available=available, idle_s=0.0)
        return replace(node, status="running", available=available, idle_s=0.0)

    # node manager

    @property
    def workers(self) -> list[str]:
        return [id for id in self.instances if id != "head"]

    list_interval_s = 2.0

    async def list_instances(self) -> Sequence[Instance]:
        if self.list_error is not None:
            raise self.list_error
        return [
            replace(i, state=State.UNREACHABLE) if i.id in self.cut_off else i
            for i in self.instances.values()
        ]

    async def offerings(self) -> Sequence[Offering]:
        if self.offered is None:
            raise TransientError("this provider has no offerings")
        return self.offered

    async def launch(self, request: LaunchRequest) -> LaunchResult:
        self.launch_requests.append(request)
        if request.node_type in self.refusals:
            raise self.refusals[request.node_type]
        ids = self.tokens.setdefault(request.token, [])
        for _ in range(min(request.count, self.max_per_launch) - len(ids)):
            number = next(self.numbers)
            free = [h for h in self.worker_hosts or () if h not in self.instances]
            free = [h for h in free if not request.hosts or h in request.hosts]
            if self.worker_hosts is not None and not free:
                break
            id = free[0] if free else f"i-{number}"
            self.add_instance(id, f"worker-{number}", request.node_type)
            ids.append(id)
        if self.kill_during_launch:
            raise Killed
        return LaunchResult([self.instances[id] for id in ids])

    async def bootstrap(
        self, instance: Instance, head: Instance, emit: Emit, *, restart: bool
    ) -> ShoalError | None:
        self.bootstrapped.append(instance.name)
        if instance.id in self.cut_off:
            return UnreachableError("no answer")
        self.ray.pop(instance.id, None)
        for phase in (Phase.REACHABLE, Phase.PREPARING, Phase.STARTING):
            emit(NodeChanged(instance.name, instance.node_type, "worker", phase))
        if self.setup_gate is not None:
            self.in_setup += 1
            try:
                await self.setup_gate.wait()
            finally:
                self.in_setup -= 1
        if self.setup_failures > 0:
            self.setup_failures -= 1
            return SetupError("setup command 1 of 1 failed", output=["no such package"])
        self.join(instance.id)
        return None

    def blames_node_type(self, error: ShoalError) -> bool:
        return not isinstance(error, UnreachableError)

    async def terminate(self, instance: Instance, *, healthy: bool) -> None:
        if instance.id in self.cut_off:
            raise IncompleteError("could not clean up")
        self.instances.pop(instance.id, None)
        self.ray.pop(instance.id, None)

    async def shut_down_cluster(self, instances: Sequence[Instance]) -> None:
        if self.shutdown_error is not None:
            raise self.shutdown_error
        self.instances.clear()

    async def has_user_sessions(self, gcs_address: str, instances: Sequence[Instance]) -> bool:
        return self.user_sessions

    async def is_head_ray_running(self, head: Instance) -> bool:
        return not self.head_ray_dead and head.id in self.ray

    async def restart_head_ray(
        self, head: Instance, workers: Sequence[Instance], emit: Emit
    ) -> None:
        if self.restart_error is not None:
            raise self.restart_error
        self.head_ray_dead = False
        self.ray.clear()
        self.join(head.id)
        if self.restart_gate is not None:
            await self.restart_gate.wait()

    def add_instance(self, id: str, name: str, node_type: str) -> None:
        self.instances[id] = Instance(
            id=id,
            cluster="c",
            name=name,
            node_type=node_type,
            role="head" if id == "head" else "worker",
            state=State.RUNNING,
            address=f"10.0.0.{len(self.instances) + 1}",
            created_at=self.time,
            market=self.market,
            zone=self.zone,
        )


class Harness:
    """A controller of a fake cluster. `restart` does what a supervisor does after a crash."""

    def __init__(self, fake: FakeCluster, directory: Path, spec: ClusterSpec | None = None) -> None:
        self.cluster = fake
        self.directory = directory
        self.write_config(spec or cluster(max_workers=5))
        self.restart()

    def write_config(self, spec: ClusterSpec) -> None:
        """Replace the config, as `up` does."""
        self.config = ControllerConfig(spec, "", "", "")
        draft = self.directory / "draft"
        draft.write_text(json.dumps(self.config.to_json()))
        draft.replace(self.directory / CONFIG)

    def restart(self) -> None:
        dependencies = Dependencies(self.cluster, lambda _: self.cluster, self.cluster)
        self.controller = Controller(self.directory, self.config, dependencies)

    @property
    def state(self) -> ControllerState:
        return self.controller.state

    @property
    def status(self) -> ControllerStatus:
        """The status that the controller last published."""
        return status_file.parse((self.directory / STATE).read_text())

    def reasons(self, action: str) -> list[str]:
        """The reasons of all decisions with this action, oldest first."""
        return [d.why for d in self.state.decisions if d.action == action]

    async def iterate(self, count: int = 1, *, seconds: float = 1.0) -> None:
        """Run iterations of the loop, `seconds` apart, with all tasks that they start."""
        for _ in range(count):
            self.cluster.time += seconds
            assert self.controller.should_run()
            if await self.controller.run_once():
                return
            await self._finish_tasks()

    async def _finish_tasks(self) -> None:
        """Return when all tasks have ended, except bootstraps that the gate holds."""
        deadline = time.monotonic() + _TASKS_SECONDS
        while self.controller.is_busy and time.monotonic() < deadline:
            await asyncio.sleep(0.0005)
            if len(asyncio.all_tasks()) - 1 <= self.cluster.in_setup:  # one is the test itself
                return


async def never_return(*_: object) -> LaunchResult:
    """A call without an answer."""
    await asyncio.Event().wait()
    raise AssertionError
