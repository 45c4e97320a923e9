"""Stopping and starting a cluster of which not every machine answers."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shoal.bootstrap.applied_state import AppliedState
from shoal.bootstrap.node_plan import Mode, NodePlan
from shoal.bootstrap.node_probe import NodeProbe
from shoal.cluster.handle import ClusterHandle
from shoal.cluster.observed_cluster import ObservedCluster
from shoal.controller import client
from shoal.core.errors import IncompleteError, SetupError, ShoalError, UnreachableError
from shoal.core.events import Event
from shoal.core.node_phase import Role
from shoal.ops import stop_start
from shoal.ops.context import Context
from shoal.providers.model import Instance, State
from shoal.providers.protocol import Capabilities, Provider
from shoal.ray_runtime.ray_start import RayStart
from shoal.remote.local_runner import LocalRunner
from shoal.remote.runner import Runner
from shoal.spec.cluster_spec import ClusterSpec, FilesSpec, NodeSetup, ProviderSpec
from tests.specs import cluster

RUNS = NodeProbe(AppliedState(setup="s"), ray_runs=True)
SLEEPS = NodeProbe(AppliedState(setup="s"))
GONE = UnreachableError("10.0.0.3 does not answer")


def machine(name: str, state: State = State.RUNNING) -> Instance:
    role: Role = "head" if name == "head" else "worker"
    kind = "head" if name == "head" else "worker"
    return Instance(name, "c", name, kind, role, state, f"at-{name}", None)


class Rack(ClusterHandle):
    """A site of machines that are as the test says: how their Ray is, None for one that does not
    say, or why they cannot be reached. Each is a directory, in which its commands run."""

    def __init__(self, home: Path, gcs: str, **machines: NodeProbe | ShoalError | None) -> None:
        provider = SimpleNamespace(
            capabilities=Capabilities(
                stops_instances=False, unreachable_reasons=lambda: self.unreachable
            )
        )
        super().__init__(cast(Provider, provider), spec())
        self._gcs = gcs
        self._home = home
        self._machines = {name.replace("_", "-"): how for name, how in machines.items()}
        self.unreachable = {
            n: how for n, how in self._machines.items() if isinstance(how, ShoalError)
        }
        for name in self._machines:
            (home / name).mkdir()

    async def observe(self, instances: Sequence[Instance] | None = None) -> ObservedCluster:
        found = [
            machine(name, State.UNREACHABLE if name in self.unreachable else State.RUNNING)
            for name in self._machines
        ]
        said = {n: how for n, how in self._machines.items() if isinstance(how, NodeProbe)}
        return ObservedCluster(found, said)

    async def instances(self, role: Role | None = None) -> Sequence[Instance]:
        return (await self.observe()).instances

    async def probe(self, instance: Instance) -> NodeProbe:
        return NodeProbe()

    def node_plan(self, instance: Instance, head: Instance, mode: Mode = "full") -> NodePlan:
        way = cast(Runner, LocalRunner(self._home / instance.name, {}))
        begin = f"echo {mode} > started"
        start = RayStart((begin,), {}, self._gcs, "python3", 0)
        return NodePlan(instance, way, way, NodeSetup(), start, FilesSpec(mounts={}), "", mode=mode)

    def node_runner(self, instance: Instance, *_: object) -> Runner:
        return LocalRunner(self._home / instance.name, {})

    def runner(self, instance: Instance) -> Runner:
        return self.node_runner(instance)

    def ray_start(self, *_: object) -> RayStart:
        return RayStart((), {}, self._gcs, "python3", 0)

    async def stop_ray(self, instances: Sequence[Instance]) -> None:
        for instance in instances:
            (self._home / instance.name / "halted").touch()

    def where(self, note: str) -> list[str]:
        """The machines with a file of this name, and what is in it."""
        found = [(name, self._home / name / note) for name in self._machines]
        return [f"{n} {path.read_text().strip()}".strip() for n, path in found if path.exists()]


def spec() -> ClusterSpec:
    made = cluster()
    ours = replace(made.shoal, controller=True)
    return replace(made, provider=ProviderSpec("local", {}), shoal=ours)


@pytest.fixture
def rack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Rack]]:
    """Makes the site that operations find, of a cluster whose controller takes it at once."""
    gcs = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{gcs.getsockname()[1]}"

    async def nothing(*_: Any, **__: Any) -> bool:
        return True

    def make(**machines: NodeProbe | ShoalError | None) -> Rack:
        site = Rack(tmp_path, address, **machines)
        monkeypatch.setattr(ClusterHandle, "of", lambda *_: site)
        monkeypatch.setattr(client, "deploy_controller", nothing)
        return site

    with gcs:
        yield make


@pytest.fixture
def told() -> list[Event]:
    return []


@pytest.fixture
def ctx(tmp_path: Path, told: list[Event]) -> Context:
    return Context(emit=told.append, home=tmp_path / "laptop")


async def test_a_stop_names_what_it_could_not_reach_and_stops_the_rest(
    rack: Callable[..., Rack], ctx: Context
) -> None:
    site = rack(head=RUNS, worker_1=RUNS, worker_2=GONE)
    with pytest.raises(IncompleteError, match=r"worker-2 \(at-worker-2\) cannot be reached") as it:
        await stop_start.stop(ctx, spec())
    assert it.value.why == "Ray may still run there: 10.0.0.3 does not answer"
    assert site.where("halted") == ["head", "worker-1"]


async def test_nothing_is_stopped_that_an_unreachable_head_would_start_again(
    rack: Callable[..., Rack], ctx: Context
) -> None:
    site = rack(head=GONE, worker_1=RUNS)
    with pytest.raises(IncompleteError, match=r"head \(at-head\) cannot be reached"):
        await stop_start.stop(ctx, spec())
    assert site.where("halted") == []


async def test_a_start_with_nothing_to_do_names_what_it_could_not_reach(
    rack: Callable[..., Rack], ctx: Context, told: list[Event]
) -> None:
    rack(head=RUNS, worker_1=RUNS, worker_2=GONE)
    with pytest.raises(IncompleteError, match="worker-2"):
        await stop_start.start(ctx, spec())
    assert [event.kind for event in told] == []


async def test_a_start_brings_back_what_answers_and_names_the_rest(
    rack: Callable[..., Rack], ctx: Context, told: list[Event]
) -> None:
    site = rack(head=RUNS, worker_1=SLEEPS, worker_2=SetupError("it is switched off"))
    with pytest.raises(IncompleteError, match="worker-2") as it:
        await stop_start.start(ctx, spec())
    assert it.value.why == "Ray runs on all others: it is switched off"
    assert site.where("started") == ["worker-1 restart"]
    assert told[-1].kind == "ready"


async def test_machines_that_do_not_say_how_they_are_are_waited_for(
    rack: Callable[..., Rack], ctx: Context
) -> None:
    """As those that were just switched on."""
    site = rack(head=None, worker_1=None)
    await stop_start.start(ctx, spec())
    assert site.where("started") == ["head update", "worker-1 update"]


async def test_a_head_that_does_not_say_how_it_is_costs_no_worker_its_ray(
    rack: Callable[..., Rack], ctx: Context
) -> None:
    site = rack(head=None, worker_1=RUNS)
    await stop_start.start(ctx, spec())
    assert site.where("halted") == []
    assert site.where("started") == ["head update"]
