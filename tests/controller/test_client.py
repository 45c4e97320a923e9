"""Pausing the controller: it is resumed after a failure, and only then."""

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
    """A cluster whose head records the controller commands that it runs."""

    def __init__(self, home: Path, *, ray_runs: bool = True) -> None:
        super().__init__(cast(Provider, self), cluster())
        (home / ".shoal" / "controller").mkdir(parents=True)
        (home / "python").write_text('#!/bin/sh\necho "$3" >> commands\n')
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
    def commands(self) -> list[str]:
        return (self._home / "commands").read_text().split()


@pytest.mark.parametrize("error", [SetupError("a setup command failed"), asyncio.CancelledError()])
async def test_a_failed_or_cancelled_command_resumes_the_controller(
    tmp_path: Path, error: BaseException
) -> None:
    fake = Head(tmp_path)
    with pytest.raises(type(error)):
        async with client.controller_paused(fake, [HEAD]):
            assert fake.commands == ["stop"]
            raise error
    assert fake.commands == ["stop", "resume"]


async def test_the_controller_is_not_resumed_on_a_head_without_ray(tmp_path: Path) -> None:
    fake = Head(tmp_path, ray_runs=False)
    with pytest.raises(SetupError):
        async with client.controller_paused(fake, [HEAD]):
            raise SetupError("a setup command failed")
    assert fake.commands == ["stop"]


async def test_a_successful_command_does_not_resume_the_controller(tmp_path: Path) -> None:
    fake = Head(tmp_path)
    async with client.controller_paused(fake, [HEAD]):
        pass
    assert fake.commands == ["stop"]
