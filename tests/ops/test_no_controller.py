"""What becomes of machines whose cluster gets no controller, by wish or by mishap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shoal.cluster.handle import ClusterHandle
from shoal.controller import client
from shoal.core.events import Event, Warned
from shoal.ops.context import Context
from shoal.providers.model import Instance, State
from shoal.providers.protocol import Capabilities, Provider
from shoal.ray_runtime.ray_start import RayStart
from shoal.remote.local_runner import LocalRunner
from shoal.remote.runner import Runner
from tests.specs import cluster

HEAD = Instance("id-head", "c", "head", "head", "head", State.RUNNING, "127.77.0.1", None)
WORKER = Instance("id-w", "c", "w", "worker", "worker", State.RUNNING, "127.77.0.2", None)
OFF = replace(WORKER, id="id-off", name="off", state=State.STOPPED)


class Cluster(ClusterHandle):
    """A head and a worker, each in a directory of its own, on which no controller can start."""

    def __init__(self, homes: Path, **settings: Any) -> None:
        spec = cluster()
        spec = replace(spec, shoal=replace(spec.shoal, **settings))
        provider = SimpleNamespace(capabilities=Capabilities(on_lease_expired="shutdown"))
        super().__init__(cast(Provider, provider), spec)
        self._homes = homes
        for instance in (HEAD, WORKER, OFF):
            (homes / instance.name).mkdir()
        self.warnings: list[Warned] = []

    async def instances(self, *_: object) -> Sequence[Instance]:
        return [HEAD, WORKER, OFF]

    def ray_start(self, *_: object) -> RayStart:
        return RayStart((), {}, "127.77.0.1:6379", "false", 0)

    def node_runner(self, instance: Instance, *_: object) -> Runner:
        return LocalRunner(self._homes / instance.name, {})

    def runner(self, instance: Instance) -> Runner:
        return self.node_runner(instance)

    async def hand_over(self) -> set[str]:
        """Hand it over, and return the machines that were told not to wait for a controller."""

        def hear(event: Event) -> None:
            assert isinstance(event, Warned)
            self.warnings.append(event)

        await client.deploy_controller(Context(emit=hear, home=self._homes / "home"), self, HEAD)
        return {mark.parents[1].name for mark in self._homes.glob("*/.shoal/no-controller")}


async def test_machines_learn_that_the_file_wants_no_controller_any_more(tmp_path: Path) -> None:
    """They may have waited for one that never came."""
    site = Cluster(tmp_path, controller=False)
    assert await site.hand_over() == {"head", "w"}
    assert site.warnings == []


async def test_a_cluster_whose_controller_does_not_start_lives_on_and_says_so(
    tmp_path: Path,
) -> None:
    site = Cluster(tmp_path)
    assert await site.hand_over() == {"head", "w"}
    (warning,) = site.warnings
    assert warning.what == "the cluster does not size itself"
    assert "within 2 h" in warning.fix, "workers that had one before are held to it"
    assert "controller: false" in warning.fix


@pytest.mark.parametrize(("lease", "ends"), [(900.0, "in about 3 h"), (0.0, "when it is idle")])
async def test_one_that_was_to_stop_when_idle_says_what_becomes_of_it_instead(
    tmp_path: Path, lease: float, ends: str
) -> None:
    site = Cluster(tmp_path, autostop=1800.0, lease=lease)
    assert await site.hand_over() == set(), "its machines wait for a controller, and then go"
    (warning,) = site.warnings
    assert "does not stop when it is idle" in warning.what
    assert warning.what.endswith(ends)
