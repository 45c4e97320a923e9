"""Ray that is not on the PATH of a login shell, for users with other shells than bash."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable

import pytest
import pytest_asyncio

from tests.providers.local.ray_environments import RAY_ENVIRONMENTS
from tests.providers.local.ssh_bed import Bed
from tests.simcloud.cloud import SimCloud
from tests.simcloud.hosts import Host

pytestmark = [pytest.mark.simcloud, pytest.mark.ray, pytest.mark.asyncio(loop_scope="module")]

REAL = ("absolute path", "source activate")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cloud() -> AsyncIterator[SimCloud]:
    async with SimCloud() as cloud:
        laptop = await cloud.laptop()
        await laptop.run("echo 'import sys; print(sys.executable)' > which.py")
        yield cloud


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def quick_beds(cloud: SimCloud) -> dict[str, Bed]:
    """A cluster of one host for each environment, with a stand-in for Ray."""
    return await _up(cloud, RAY_ENVIRONMENTS, real=False)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def real_beds(cloud: SimCloud) -> dict[str, Bed]:
    """The same with real Ray, for some of the environments."""
    return await _up(cloud, REAL, real=True)


async def _up(cloud: SimCloud, kinds: Iterable[str], *, real: bool) -> dict[str, Bed]:
    laptop = await cloud.laptop()
    beds = await asyncio.gather(*(_up_one(cloud, laptop, kind, real=real) for kind in kinds))
    return dict(zip(kinds, beds, strict=True))


async def _up_one(cloud: SimCloud, laptop: Host, kind: str, *, real: bool) -> Bed:
    environment = RAY_ENVIRONMENTS[kind]
    host = await cloud.boot(ray_on_path=False)
    await environment.prepare(host, stand_in=not real)
    bed = Bed(cloud, laptop, [host])
    name = ("real" if real else "quick") + kind.replace(" ", "").replace("-", "")
    ray = f"{environment.start}ray"
    await bed.write(
        f"{name}.yaml",
        cluster_name=name,
        head_start_ray_commands=[f"{ray} stop", f"{ray} start --head --port=6379"],
        shoal={"controller": real},
    )
    done = await bed.shoal(f"up {name}.yaml --yes")
    if real:
        assert done.code == 0, done.stdout + done.stderr
    else:  # the stand-in is no Ray, and that is noticed
        assert done.code == 4, done.stdout + done.stderr
        assert "nothing listens at" in done.stderr
    return bed


@pytest.mark.parametrize("kind", RAY_ENVIRONMENTS)
async def test_submit_uses_the_python_that_the_start_commands_started(
    quick_beds: dict[str, Bed], kind: str
) -> None:
    bed = quick_beds[kind]
    done = await bed.shoal(f"submit {bed.settings['cluster_name']} which.py")
    assert done.stdout.strip() == RAY_ENVIRONMENTS[kind].python, done.stderr


@pytest.mark.parametrize("kind", RAY_ENVIRONMENTS)
async def test_nothing_is_stopped_where_nothing_runs(quick_beds: dict[str, Bed], kind: str) -> None:
    calls = await quick_beds[kind].read(quick_beds[kind].head, "cat ~/ray-calls")
    assert [line.split()[0] for line in calls.splitlines()] == ["start"]


async def test_the_interpreter_is_remembered_while_ray_does_not_run(
    quick_beds: dict[str, Bed],
) -> None:
    bed = quick_beds["conda function"]
    await bed.read(bed.head, "pkill raylet; pkill gcs_server")
    done = await bed.shoal(f"submit {bed.settings['cluster_name']} which.py")
    assert done.stdout.strip() == RAY_ENVIRONMENTS["conda function"].python, done.stderr


@pytest.mark.parametrize("kind", REAL)
async def test_controller_status_and_exec_use_the_python_that_ray_runs_with(
    real_beds: dict[str, Bed], kind: str
) -> None:
    bed = real_beds[kind]
    name = bed.settings["cluster_name"]
    status = json.loads((await bed.shoal(f"status {name} --json")).stdout)
    assert [(n["phase"], n["detail"]) for n in status["nodes"]] == [("ready", "")]
    assert status["controller"]["age_s"] < 15
    supervisor = await bed.read(bed.head, "pgrep -fa '[s]hoal.controller supervise'")
    assert RAY_ENVIRONMENTS[kind].python in supervisor
    executed = await bed.shoal(f"exec {name} 'ray status && python -c \"import ray\"'")
    assert executed.code == 0, executed.stderr


async def test_a_controller_that_dies_all_the_time_is_no_success(real_beds: dict[str, Bed]) -> None:
    bed = real_beds["absolute path"]
    name = bed.settings["cluster_name"]
    journal = "~/.shoal/controller/journal.jsonl"
    await bed.read(bed.head, f"mv {journal} ~/saved && mkdir {journal}")
    await bed.read(bed.head, "kill -9 $(cat ~/.shoal/controller/controller.lock)")
    try:
        done = await bed.shoal(f"up {name}.yaml --yes")
        assert done.code == 4
        assert "the controller has died" in done.stderr
        assert "IsADirectoryError" in done.stderr, "the last lines of its log"
        for command in (f"status {name}", "ls"):
            done = await bed.shoal(command)
            assert "controller restarted" in done.stdout
    finally:
        await bed.read(bed.head, f"rmdir {journal} && mv ~/saved {journal}")
    assert (await bed.shoal(f"up {name}.yaml --yes")).code == 0
    assert "restarted" not in (await bed.shoal(f"status {name}")).stdout


async def test_a_removed_environment_is_reported(real_beds: dict[str, Bed]) -> None:
    bed = real_beds["source activate"]
    name = bed.settings["cluster_name"]
    await bed.read(bed.head, "mv ~/env ~/moved")
    try:
        changed = "it runs with /home/ubuntu/env/bin/python, which no longer exists"
        done = await bed.shoal(f"status {name}")
        assert changed in done.stdout
        assert "not running" not in done.stdout
        for command in (f"up {name}.yaml --yes", f"submit {name} which.py"):
            done = await bed.shoal(command)
            assert done.code not in (0, None)
            assert changed in done.stderr
        done = await bed.shoal(f"exec {name} 'echo ran'")
        assert (done.code, done.stdout) == (0, "ran\n"), "the command may not need Ray"
        assert changed in done.stderr
    finally:
        await bed.read(bed.head, "mv ~/moved ~/env")


@pytest.mark.long
async def test_an_environment_with_another_ray_is_reported_until_ray_restarts(
    real_beds: dict[str, Bed],
) -> None:
    bed = real_beds["source activate"]
    name = bed.settings["cluster_name"]
    other = "~/env/lib/python3*/site-packages"
    patch = "import ray; ray.__version__ = '9.9.9'"
    await bed.read(bed.head, f'for d in {other}; do echo "{patch}" > $d/zz.pth; done')
    changed = "/home/ubuntu/env/bin/python now has Ray 9.9.9"
    done = await bed.shoal(f"status {name}")
    assert changed in done.stdout
    done = await bed.shoal(f"up {name}.yaml --yes")
    assert done.code == 4
    assert changed in done.stderr
    (fix,) = [line for line in done.stderr.splitlines() if "--restart-only" in line]
    assert (await bed.shoal(fix.partition("shoal ")[2] + " --yes")).code == 0
    assert changed not in (await bed.shoal(f"status {name}")).stdout
