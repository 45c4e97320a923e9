"""Bootstrap pipelines, with local runners in place of hosts."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest

from shoal.bootstrap.node_commands import run_on_each
from shoal.bootstrap.node_plan import Mode, NodePlan
from shoal.bootstrap.pipeline import bootstrap_nodes
from shoal.core.clock import SystemClock
from shoal.core.errors import IncompleteError
from shoal.core.node_phase import Role
from shoal.providers.model import Instance, State
from shoal.ray_runtime.ray_start import RayStart
from shoal.remote.local_runner import LocalRunner
from shoal.remote.runner import Runner
from shoal.spec.cluster_spec import FilesSpec, NodeSetup


def ignore_events(_: object) -> None:
    pass


def instance(name: str) -> Instance:
    role: Role = "head" if name == "head" else "worker"
    return Instance(f"id-{name}", "c", name, "t", role, State.RUNNING, "127.77.0.1", None)


@dataclass
class HangingRunner:
    """A host on which some commands never end, and others end at once."""

    home: Path
    hangs: Callable[[str], bool]

    async def connect(self, *, timeout: float) -> None:
        pass

    async def run(self, command: str, **how: Any) -> Any:
        if self.hangs(command):
            raise TimeoutError(f"no end after 30 s: {command[:20]}")
        return await LocalRunner(self.home, {}).run(command, **how)


def plan(name: str, runner: object, mode: Mode = "full", *start: str) -> NodePlan:
    host = cast(Runner, runner)
    return NodePlan(
        instance=instance(name),
        runner=host,
        node_runner=host,
        setup=NodeSetup(),
        start=RayStart(start, {}, "127.77.0.1:1", "python3", 0),
        files=FilesSpec(mounts={}),
        files_digest="",
        mode=mode,
    )


async def test_timeout_on_one_node_fails_only_that_node(tmp_path: Path) -> None:
    head = plan("head", LocalRunner(tmp_path, {}), "full", "touch started")
    hanging = HangingRunner(tmp_path, lambda command: command == "claim it")
    worker = replace(plan("worker-1", hanging), claim="claim it")
    failures = await bootstrap_nodes([head, worker], head, ignore_events, SystemClock())
    assert list(failures) == ["worker-1"]
    assert failures["worker-1"].node == "worker-1"
    assert "does not answer in time: no end after 30 s" in str(failures["worker-1"])
    assert (tmp_path / "started").exists()


async def test_the_controller_can_start_before_the_start_command_of_the_head_returns(
    tmp_path: Path,
) -> None:
    raylet = "ln -s $(command -v sleep) raylet; RAY_CLOUD_INSTANCE_ID=id-head ./raylet 60 & pid=$!"
    wait = "timeout 20 sh -c 'until [ -e prepared ]; do sleep 0.05; done'; code=$?"
    start = f"{raylet}\n{wait}\nkill $pid\nexit $code"
    head = plan("head", LocalRunner(tmp_path, {}), "full", start)

    async def prepare_controller() -> None:
        (tmp_path / "prepared").touch()

    failures = await bootstrap_nodes(
        [head], head, ignore_events, SystemClock(), on_ray_runs=prepare_controller
    )
    assert not failures


async def test_a_start_command_that_leaves_no_process_is_enough_for_the_controller(
    tmp_path: Path,
) -> None:
    head = plan("head", LocalRunner(tmp_path, {}), "full", "true")
    calls: list[str] = []

    async def prepare_controller() -> None:
        calls.append("prepared")

    await bootstrap_nodes(
        [head], head, ignore_events, SystemClock(), on_ray_runs=prepare_controller
    )
    assert calls == ["prepared"]


@pytest.fixture
def python_3_10(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.10, whose `asyncio.TimeoutError` is not `TimeoutError`."""
    monkeypatch.setattr("asyncio.TimeoutError", type("AsyncioTimeoutError", (Exception,), {}))


async def test_host_that_is_too_slow_to_clean_up_is_named_on_every_python(
    tmp_path: Path, python_3_10: None
) -> None:
    slow = cast(Runner, HangingRunner(tmp_path, lambda command: True))
    with pytest.raises(IncompleteError, match=r"could not clean up on worker-1") as caught:
        await run_on_each([instance("worker-1")], lambda _: slow, "clean up", lambda _: ["true"])
    assert "no end after 30 s" in caught.value.why


async def test_worker_does_not_wait_long_for_the_gcs_of_a_head_that_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.bootstrap.steps._GCS_SECONDS", 0.1)
    runner = LocalRunner(tmp_path, {})
    head, worker = plan("head", runner), plan("worker-1", runner, "full", "touch started")
    failures = await bootstrap_nodes([worker], head, ignore_events, SystemClock())
    assert "cannot reach the head's GCS at 127.77.0.1:1" in str(failures["worker-1"])
    assert not (tmp_path / "started").exists()


async def test_what_is_left_of_a_head_that_died_in_part_is_stopped_before_it_starts(
    tmp_path: Path,
) -> None:
    """A raylet without its GCS: Ray would refuse to start a head at the same address."""
    shutil.copy("/bin/sleep", tmp_path / "raylet")
    env = {**os.environ, "RAY_CLOUD_INSTANCE_ID": "id-head"}
    with subprocess.Popen([tmp_path / "raylet", "600"], env=env) as raylet:

        async def stop() -> None:
            raylet.kill()
            raylet.wait()

        head = plan("head", LocalRunner(tmp_path, {}), "full", f"! kill -0 {raylet.pid}")
        head = replace(head, stop_ray=stop)
        try:
            failures = await bootstrap_nodes([head], head, ignore_events, SystemClock())
        finally:
            raylet.kill()
    assert failures == {}


_TIMED_OUT = "Exception: The current node timed out during startup. This could happen because"


async def test_ray_that_times_out_at_its_start_is_stopped_and_started_again(tmp_path: Path) -> None:
    start = f"echo start >> log; [ -e stopped ] || {{ echo '{_TIMED_OUT}' >&2; exit 1; }}"

    async def stop() -> None:
        (tmp_path / "stopped").touch()

    head = replace(plan("head", LocalRunner(tmp_path, {}), "full", start), stop_ray=stop)
    assert await bootstrap_nodes([head], head, ignore_events, SystemClock()) == {}
    assert (tmp_path / "log").read_text().split() == ["start", "start"]


@pytest.mark.parametrize(("message", "starts"), [(_TIMED_OUT, 2), ("no such option", 1)])
async def test_ray_that_does_not_start_is_not_started_again_and_again(
    tmp_path: Path, message: str, starts: int
) -> None:
    start = f"echo start >> log; echo '{message}' >&2; exit 1"
    head = plan("head", LocalRunner(tmp_path, {}), "full", start)
    failures = await bootstrap_nodes([head], head, ignore_events, SystemClock())
    assert message in failures["head"].output[-1]
    assert (tmp_path / "log").read_text().split() == ["start"] * starts
