"""A cluster's controller, from outside: one hand at a time, and never none for long."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest

from shoal.bootstrap.node_probe import NodeProbe
from shoal.cluster.handle import ClusterHandle
from shoal.controller import client
from shoal.core.errors import SetupError
from shoal.providers.model import Instance, State
from shoal.providers.protocol import Provider
from shoal.ray_runtime.ray_start import RayStart
from shoal.remote.local_runner import LocalRunner
from shoal.remote.runner import Runner
from tests.specs import cluster

HEAD = Instance("id-head", "c", "head", "head", "head", State.RUNNING, "127.77.0.1", None)


class Head(ClusterHandle):
    """A site whose head notes what its controller is told to do."""

    def __init__(self, home: Path, *, ray_runs: bool = True) -> None:
        super().__init__(cast(Provider, self), cluster())
        (home / ".shoal" / "controller").mkdir(parents=True)
        (home / "python").write_text('#!/bin/sh\necho "$3" >> told\n')
        (home / "python").chmod(0o755)
        self._home = home
        self._ray_runs = ray_runs

    def ray_start(self, *_: object) -> RayStart:
        return RayStart((), {}, "127.77.0.1:6379", "./python", 0)

    def node_runner(self, *_: object) -> Runner:
        return LocalRunner(self._home, {})

    async def probe(self, instance: Instance) -> NodeProbe:
        return NodeProbe(ray_runs=self._ray_runs)

    @property
    def told(self) -> list[str]:
        return (self._home / "told").read_text().split()


@pytest.mark.parametrize("end", [SetupError("a setup command failed"), asyncio.CancelledError()])
async def test_whoever_fails_with_a_cluster_in_hand_gives_it_back(
    tmp_path: Path, end: BaseException
) -> None:
    site = Head(tmp_path)
    with pytest.raises(type(end)):
        async with client.controller_paused(site, [HEAD]):
            assert site.told == ["stop"]
            raise end
    assert site.told == ["stop", "resume"]


async def test_a_head_whose_ray_was_ended_is_left_to_the_next_up(tmp_path: Path) -> None:
    site = Head(tmp_path, ray_runs=False)
    with pytest.raises(SetupError):
        async with client.controller_paused(site, [HEAD]):
            raise SetupError("a setup command failed")
    assert site.told == ["stop"]


async def test_whoever_is_done_has_handed_the_cluster_over_already(tmp_path: Path) -> None:
    site = Head(tmp_path)
    async with client.controller_paused(site, [HEAD]):
        pass
    assert site.told == ["stop"]
