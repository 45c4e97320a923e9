"""What happens to the nodes of a cluster without a controller: disabled, or failed to start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shoal.cluster.handle import ClusterHandle
from shoal.controller import client
from shoal.core.errors import IncompleteError
from shoal.core.events import Event
from shoal.providers.model import Instance, State
from shoal.providers.protocol import Capabilities, Provider
from shoal.ray_runtime.ray_start import RayStart
from shoal.remote.local_runner import LocalRunner
from shoal.remote.runner import Runner
from tests.specs import cluster

HEAD = Instance("id-head", "c", "head", "head", "head", State.RUNNING, "127.77.0.1", None)
WORKER = Instance("id-w", "c", "w", "worker", "worker", State.RUNNING, "127.77.0.2", None)
STOPPED = replace(WORKER, id="id-stopped", name="stopped", state=State.STOPPED)


class FakeCluster(ClusterHandle):
    """A head and a worker, each in its own directory, where no controller can start."""

    def __init__(self, homes: Path, **settings: Any) -> None:
        spec = cluster()
        spec = replace(spec, shoal=replace(spec.shoal, **settings))
        provider = SimpleNamespace(capabilities=Capabilities(on_lease_expired="shutdown"))
        super().__init__(cast(Provider, provider), spec)
        self._homes = homes
        for instance in (HEAD, WORKER, STOPPED):
            (homes / instance.name).mkdir()
        self.problems: list[IncompleteError] = []

    async def instances(self, *_: object) -> Sequence[Instance]:
        return [HEAD, WORKER, STOPPED]

    def ray_start(self, *_: object) -> RayStart:
        return RayStart((), {}, "127.77.0.1:6379", "false", 0)

    def node_runner(self, instance: Instance, *_: object) -> Runner:
        return LocalRunner(self._homes / instance.name, {})

    def runner(self, instance: Instance) -> Runner:
        return self.node_runner(instance)

    async def deploy(self) -> set[str]:
        """Deploy the controller, and return the nodes that no longer wait for one."""

        def unexpected(event: Event) -> None:
            raise AssertionError(event)

        try:
            await client.deploy_controller(self, HEAD, emit=unexpected, home=self._homes / "home")
        except IncompleteError as problem:
            self.problems.append(problem)
        return {file.parents[1].name for file in self._homes.glob("*/.shoal/no-controller")}


async def test_nodes_stop_waiting_for_a_controller_that_the_file_disables(tmp_path: Path) -> None:
    """They may have been waiting for one that never started."""
    fake = FakeCluster(tmp_path, controller=False)
    assert await fake.deploy() == {"head", "w"}
    assert fake.problems == []


async def test_a_cluster_whose_controller_does_not_start_is_incomplete_and_keeps_running(
    tmp_path: Path,
) -> None:
    fake = FakeCluster(tmp_path)
    assert await fake.deploy() == {"head", "w"}
    (problem,) = fake.problems
    assert problem.what == "the cluster does not autoscale"
    assert "within 2 h" in problem.fix, "workers that had a controller before still have a lease"
    assert "controller: false" in problem.fix


@pytest.mark.parametrize(("lease", "ends"), [(900.0, "in about 3 h"), (0.0, "when it is idle")])
async def test_the_error_of_a_cluster_with_autostop_says_when_it_ends(
    tmp_path: Path, lease: float, ends: str
) -> None:
    fake = FakeCluster(tmp_path, autostop=1800.0, lease=lease)
    assert await fake.deploy() == set(), "its nodes wait for a controller, then terminate"
    (problem,) = fake.problems
    assert "does not stop when it is idle" in problem.what
    assert problem.what.endswith(ends)
