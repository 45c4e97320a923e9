"""A world for the controller that can be made to fail in ways that a real one cannot: machines,
Ray and time are plain data, and every fault is one assignment."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from shoal.controller.controller_config import ControllerConfig
from shoal.controller.loop import Controller, Tools
from shoal.controller.node_manager import LaunchResult
from shoal.controller.paths import HANDOVER
from shoal.core.errors import SetupError, ShoalError, TransientError
from shoal.core.events import Emit, NodeChanged
from shoal.core.node_phase import Phase
from shoal.providers.model import Instance, LaunchRequest, State
from shoal.ray_runtime.gcs_client import Failed, Pending, Reading, Requested
from shoal.ray_runtime.nodes import RayNode
from shoal.scaling import Demand, Request, Shape
from shoal.scaling.inputs import Market, Offering
from shoal.spec.cluster_spec import ClusterSpec
from tests.specs import cluster

# For what a turn has set going in threads, which may be slow to get theirs.
_SETTLE_SECONDS = 5.0


class Killed(BaseException):
    """The controller's process ended here and now."""


@dataclass
class World:
    """Machines, Ray's view of them, the demand, and what is to go wrong. `busy` are nodes whose
    resources are taken, `actors` those with actors that hold none."""

    time: float = 1000.0
    machines: dict[str, Instance] = field(default_factory=dict)
    ray: dict[str, RayNode] = field(default_factory=dict)
    demand: Demand = field(default_factory=Demand)
    tokens: dict[str, list[str]] = field(default_factory=dict)
    creates: list[LaunchRequest] = field(default_factory=list)
    pending: list[Pending | Requested] = field(default_factory=list)
    refusals: dict[str, ShoalError] = field(default_factory=dict)
    most_at_once: int = 1000
    setup_failures: int = 0
    slow_setup: asyncio.Event | None = None
    in_setup: int = 0
    busy: set[str] = field(default_factory=set)
    actors: set[str] = field(default_factory=set)
    drained: dict[str, float] = field(default_factory=dict)
    gcs_silent: bool = False
    drains_fail: bool = False
    head_dead: bool = False
    list_error: Exception | None = None
    end_error: Exception | None = None
    driver: bool = False
    pins: set[str] = field(default_factory=set)
    attended: bool = False
    brought_up: list[str] = field(default_factory=list)
    kill_at_create: bool = False
    market: Market = "on-demand"
    zone: str = ""
    sold: list[Offering] | None = None
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self._add("head", "head", "head")
        self.join("head")

    # time

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.time += seconds
        await asyncio.sleep(0)

    # Ray

    def read(self) -> Reading:
        if self.gcs_silent or self.head_dead:
            raise TransientError("Ray on the head does not answer")
        # A daemon that was told to drain leaves by itself when nothing runs there any more.
        self.ray = {i: n for i, n in self.ray.items() if n.status != "draining" or self._works(n)}
        nodes = {id: self._seen(node) for id, node in self.ray.items()}
        return Reading(nodes, self.demand, version=1)

    def drain_idle(self, ray_id: str, why: str) -> tuple[bool, str]:
        if self.drains_fail:
            raise TransientError("Ray on the head does not answer")
        if self._works(self.ray[ray_id]):
            return False, "busy"
        self.ray[ray_id] = replace(self.ray[ray_id], status="draining")
        return True, ""

    def drain_busy(self, ray_id: str, why: str, deadline: float) -> tuple[bool, str]:
        if self.gcs_silent:
            raise TransientError("Ray on the head does not answer")
        self.drained[ray_id] = deadline
        if ray_id in self.ray:
            self.ray[ray_id] = replace(self.ray[ray_id], status="draining")
        return True, ""

    def report(
        self, version: int, machines: Sequence[Pending | Requested], failed: Sequence[Failed] = ()
    ) -> None:
        self.pending = list(machines)

    def join(self, id: str) -> None:
        machine = self.machines[id]
        cpus = {"CPU": 0.0 if id == "head" else 1.0}
        self.ray[id] = RayNode(
            id, id, machine.address, machine.node_type, "idle", 0.0, cpus, dict(cpus)
        )

    def idle(self, id: str, seconds: float) -> None:
        self.ray[id] = replace(self.ray[id], idle_s=seconds)

    def wants(self, count: int) -> None:
        """So many tasks of one CPU are pending."""
        self.demand = Demand((Request(Shape.of({"CPU": 1.0}), count),)) if count else Demand()

    def _works(self, node: RayNode) -> bool:
        taken = node.available != node.total
        return taken or node.ray_id in self.busy or node.ray_id in self.actors

    def _seen(self, node: RayNode) -> RayNode:
        if not self._works(node):
            return node
        available = {} if node.ray_id in self.busy else node.available
        if node.status == "draining":
            return replace(node, available=available, idle_s=0.0)
        return replace(node, status="running", available=available, idle_s=0.0)

    # machines

    @property
    def workers(self) -> list[str]:
        return [id for id in self.machines if id != "head"]

    list_interval_s = 2.0
    worker_hosts = None

    async def find(self) -> Sequence[Instance]:
        if self.list_error is not None:
            raise self.list_error
        return list(self.machines.values())

    async def offers(self) -> Sequence[Offering]:
        if self.sold is None:
            raise TransientError("nobody sells machines here")
        return self.sold

    async def create(self, launch: LaunchRequest) -> LaunchResult:
        self.creates.append(launch)
        if launch.node_type in self.refusals:
            raise self.refusals[launch.node_type]
        ids = self.tokens.setdefault(launch.token, [])
        for _ in range(min(launch.count, self.most_at_once) - len(ids)):
            number = next(self.numbers)
            self._add(f"i-{number}", f"worker-{number}", launch.node_type)
            ids.append(f"i-{number}")
        if self.kill_at_create:
            raise Killed
        return LaunchResult([self.machines[id] for id in ids])

    async def bring_up(
        self, instance: Instance, head: Instance, emit: Emit, *, anew: bool
    ) -> ShoalError | None:
        self.brought_up.append(instance.name)
        self.ray.pop(instance.id, None)
        for phase in (Phase.REACHABLE, Phase.PREPARING, Phase.STARTING):
            emit(NodeChanged(instance.name, instance.node_type, "worker", phase))
        if self.slow_setup is not None:
            self.in_setup += 1
            try:
                await self.slow_setup.wait()
            finally:
                self.in_setup -= 1
        if self.setup_failures > 0:
            self.setup_failures -= 1
            return SetupError("setup command 1 of 1 failed", output=["no such package"])
        self.join(instance.id)
        return None

    def is_of_the_type(self, error: ShoalError) -> bool:
        return True

    async def end(self, instance: Instance, *, healthy: bool) -> None:
        self.machines.pop(instance.id, None)
        self.ray.pop(instance.id, None)

    async def give_back(self, instances: Sequence[Instance]) -> None:
        if self.end_error is not None:
            raise self.end_error
        self.machines.clear()

    def has_drivers(self) -> bool:
        return self.driver

    def pinned(self) -> set[str]:
        return self.pins

    async def is_attended(self, gcs_address: str, instances: Sequence[Instance]) -> bool:
        return self.attended

    async def head_runs(self, head: Instance) -> bool:
        return not self.head_dead and head.id in self.ray

    async def revive(self, head: Instance, emit: Emit) -> None:
        self.head_dead = False
        self.ray.clear()
        self.join(head.id)

    def _add(self, id: str, name: str, node_type: str) -> None:
        self.machines[id] = Instance(
            id=id,
            cluster="c",
            name=name,
            node_type=node_type,
            role="head" if id == "head" else "worker",
            state=State.RUNNING,
            address=f"10.0.0.{len(self.machines) + 1}",
            created_at=self.time,
            market=self.market,
            zone=self.zone,
        )


class Life:
    """A controller in a world. `again` is what a supervisor does after a crash."""

    def __init__(self, world: World, directory: Path, spec: ClusterSpec | None = None) -> None:
        self.world = world
        self.directory = directory
        self.hand(spec or cluster(max_workers=5))
        self.again()

    def hand(self, spec: ClusterSpec) -> None:
        """Replace the handover, as `up` does."""
        self.handover = ControllerConfig(spec, "", "", "")
        draft = self.directory / "draft"
        draft.write_text(json.dumps(self.handover.to_json()))
        draft.replace(self.directory / HANDOVER)

    def again(self) -> None:
        self.controller = Controller(
            self.directory, self.handover, Tools(self.world, lambda _: self.world, self.world)
        )

    @property
    def memory(self):  # type: ignore[no-untyped-def]
        return self.controller.memory

    def said(self, action: str) -> list[str]:
        """What was decided under this verb, oldest first."""
        return [d.why for d in self.memory.decisions if d.action == action]

    async def turns(self, count: int = 1, *, seconds: float = 1.0) -> None:
        """Let the controller take turns, with all that they set going, `seconds` apart."""
        for _ in range(count):
            self.world.time += seconds
            assert self.controller.is_wanted()
            if await self.controller.turn():
                return
            await self._settle()

    async def _settle(self) -> None:
        """Return when all that a turn set going is over, but for setups that are to be slow."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        while self.controller.busy and time.monotonic() < deadline:
            await asyncio.sleep(0.0005)
            if len(asyncio.all_tasks()) - 1 <= self.world.in_setup:  # one is this test's own
                return


async def never(*_: object) -> LaunchResult:
    """An answer that does not come."""
    await asyncio.Event().wait()
    raise AssertionError
