"""Stopping and starting a cluster when some of its nodes do not answer."""

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

RAY_RUNNING = NodeProbe(AppliedState(setup="s"), ray_runs=True)
RAY_STOPPED = NodeProbe(AppliedState(setup="s"))
UNREACHABLE = UnreachableError("10.0.0.3 does not answer")


def instance_named(name: str, state: State = State.RUNNING) -> Instance:
    role: Role = "head" if name == "head" else "worker"
    return Instance(name, "c", name, role, role, state, f"at-{name}", None)


class FakeCluster(ClusterHandle):
    """A cluster whose nodes are in the given states: the result of their probe, None if the probe
    fails, or the error if they are unreachable. Each node is a directory where commands run."""

    def __init__(self, home: Path, gcs: str, **nodes: NodeProbe | ShoalError | None) -> None:
        capabilities = Capabilities(
            stops_instances=False, unreachable_reasons=lambda: self.unreachable
        )
        provider = SimpleNamespace(capabilities=capabilities)
        super().__init__(cast(Provider, provider), spec())
        self._gcs = gcs
        self._home = home
        self._nodes = {name.replace("_", "-"): state for name, state in nodes.items()}
        self.unreachable = {
            name: state for name, state in self._nodes.items() if isinstance(state, ShoalError)
        }
        for name in self._nodes:
            (home / name).mkdir()

    async def observe(self, instances: Sequence[Instance] | None = None) -> ObservedCluster:
        instances = [
            instance_named(name, State.UNREACHABLE if name in self.unreachable else State.RUNNING)
            for name in self._nodes
        ]
        probes = {n: state for n, state in self._nodes.items() if isinstance(state, NodeProbe)}
        return ObservedCluster(instances, probes)

    async def instances(self, role: Role | None = None) -> Sequence[Instance]:
        return (await self.observe()).instances

    async def probe(self, instance: Instance) -> NodeProbe:
        return NodeProbe()

    def node_plan(
        self, instance: Instance, head: Instance, mode: Mode = "full", *, stops_ray: bool = False
    ) -> NodePlan:
        runner = cast(Runner, LocalRunner(self._home / instance.name, {}))
        command = f"echo {mode} > started"
        start = RayStart((command,), {}, self._gcs, "python3", 0)
        return NodePlan(
            instance, runner, runner, NodeSetup(), start, FilesSpec(mounts={}), "", mode=mode
        )

    def node_runner(self, instance: Instance, *_: object) -> Runner:
        return LocalRunner(self._home / instance.name, {})

    def runner(self, instance: Instance) -> Runner:
        return self.node_runner(instance)

    def ray_start(self, *_: object) -> RayStart:
        return RayStart((), {}, self._gcs, "python3", 0)

    async def stop_ray(self, instances: Sequence[Instance]) -> None:
        for instance in instances:
            (self._home / instance.name / "halted").touch()

    def nodes_with(self, file: str) -> list[str]:
        """The nodes that have this file, each with its content."""
        paths = [(name, self._home / name / file) for name in self._nodes]
        return [f"{n} {path.read_text().strip()}".strip() for n, path in paths if path.exists()]


def spec() -> ClusterSpec:
    embedded = cluster()
    shoal = replace(embedded.shoal, controller=True)
    return replace(embedded, provider=ProviderSpec("local", {}), shoal=shoal)


@pytest.fixture
def make_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., FakeCluster]]:
    """Makes the cluster that operations use, with a controller that deploys immediately."""
    gcs = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{gcs.getsockname()[1]}"

    async def nothing(*_: Any, **__: Any) -> None:
        pass

    def make(**nodes: NodeProbe | ShoalError | None) -> FakeCluster:
        fake = FakeCluster(tmp_path, address, **nodes)
        monkeypatch.setattr(ClusterHandle, "of", lambda *_: fake)
        monkeypatch.setattr(client, "deploy_controller", nothing)
        monkeypatch.setattr(stop_start, "verify_nodes", nothing)
        return fake

    with gcs:
        yield make


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def ctx(tmp_path: Path, events: list[Event]) -> Context:
    return Context(emit=events.append, home=tmp_path / "laptop")


async def test_stop_reports_unreachable_nodes_and_stops_the_others(
    make_cluster: Callable[..., FakeCluster], ctx: Context
) -> None:
    fake = make_cluster(head=RAY_RUNNING, worker_1=RAY_RUNNING, worker_2=UNREACHABLE)
    with pytest.raises(IncompleteError, match=r"unreachable: worker-2 \(at-worker-2\)") as raised:
        await stop_start.stop(ctx, spec())
    assert raised.value.why == "Ray may still be running there: 10.0.0.3 does not answer"
    assert fake.nodes_with("halted") == ["head", "worker-1"]


async def test_stop_changes_nothing_when_the_head_is_unreachable(
    make_cluster: Callable[..., FakeCluster], ctx: Context
) -> None:
    fake = make_cluster(head=UNREACHABLE, worker_1=RAY_RUNNING)
    with pytest.raises(IncompleteError, match=r"unreachable: head \(at-head\)"):
        await stop_start.stop(ctx, spec())
    assert fake.nodes_with("halted") == []


async def test_start_with_nothing_to_do_reports_unreachable_nodes(
    make_cluster: Callable[..., FakeCluster], ctx: Context, events: list[Event]
) -> None:
    make_cluster(head=RAY_RUNNING, worker_1=RAY_RUNNING, worker_2=UNREACHABLE)
    with pytest.raises(IncompleteError, match="worker-2"):
        await stop_start.start(ctx, spec())
    assert [event.kind for event in events] == []


async def test_start_starts_reachable_nodes_and_reports_the_others(
    make_cluster: Callable[..., FakeCluster], ctx: Context, events: list[Event]
) -> None:
    fake = make_cluster(
        head=RAY_RUNNING, worker_1=RAY_STOPPED, worker_2=SetupError("it is shut down")
    )
    with pytest.raises(IncompleteError, match="worker-2") as raised:
        await stop_start.start(ctx, spec())
    assert raised.value.why == "Ray is running on all other nodes: it is shut down"
    assert fake.nodes_with("started") == ["worker-1 restart"]
    assert events[-1].kind == "ready"


async def test_start_waits_for_nodes_whose_state_is_unknown(
    make_cluster: Callable[..., FakeCluster], ctx: Context
) -> None:
    """For example, nodes that are still booting."""
    fake = make_cluster(head=None, worker_1=None)
    await stop_start.start(ctx, spec())
    assert fake.nodes_with("started") == ["head update", "worker-1 update"]


async def test_a_head_whose_state_is_unknown_does_not_restart_the_workers(
    make_cluster: Callable[..., FakeCluster], ctx: Context
) -> None:
    fake = make_cluster(head=None, worker_1=RAY_RUNNING)
    await stop_start.start(ctx, spec())
    assert fake.nodes_with("halted") == []
    assert fake.nodes_with("started") == ["head update"]
