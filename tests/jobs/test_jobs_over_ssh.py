"""Jobs and sweeps on hosts that are reached over SSH: their Ray is in a virtualenv of uv at an
absolute path, their users have other shells than bash, and the laptop has no Ray. All tests share
one cluster."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.jobs.programs import result, write_file, write_project
from tests.jobs.ssh_job_bed import NO_RAY, JobBed, job_bed
from tests.polling import until
from tests.simcloud.console import Running
from tests.simcloud.hosts import Host

pytestmark = [pytest.mark.simcloud, pytest.mark.ray, pytest.mark.asyncio(loop_scope="module")]

# Prints numbers: the next ones when the head has a file /tmp/go.
COUNT = """
import os, time
for n in range(3000):
    print("line", n, flush=True)
    while n == 1500 and not os.path.exists("/tmp/go"):
        time.sleep(0.1)
"""

# Starts a task on a worker and waits without end.
HANG = """
import ray, time
ray.init(logging_level="ERROR")

@ray.remote(num_cpus=2)
def hang():
    print("hanging", flush=True)
    time.sleep(9999)

ray.get([hang.remote() for _ in range(2)])
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bed() -> AsyncIterator[JobBed]:
    async with job_bed(workers=2, min_workers=1, max_workers=2, idle_timeout_minutes=60) as bed:
        assert bed.index is not None
        await write_project(bed.laptop, bed.index)
        for name, text in {"count": COUNT, "hang": HANG}.items():
            await write_file(bed.laptop, f"code/{name}.py", text)
        commit = "git -c user.name=t -c user.email=t@example.org commit -qm one"
        done = await bed.laptop_run(f"git init -qb main && git add -A && {commit}")
        assert done.code == 0, done.stderr
        await bed.laptop_run("sed -i 's/2/3/' helper.py")
        up = await bed.laptop_run("shoal up c.yaml --yes", cwd=".")
        assert up.code == 0, up.stdout + up.stderr
        yield bed


async def test_a_job_has_its_code_and_its_packages_on_every_node(bed: JobBed) -> None:
    done = await bed.laptop_run(
        "shoal job submit mine --code . --requirements requirements.txt --id first -- "
        "python everywhere.py 2"
    )
    assert done.code == 0, done.stdout + done.stderr
    assert result(done.stdout) == [[host.address, 3, 6] for host in bed.hosts[:2]]
    restored = await bed.laptop_run("shoal job code mine first ../restored --json")
    record = json.loads(restored.stdout)
    assert (record["dirty"], "shoaltest==1.0" in record["packages"]) == (True, True)
    compared = await bed.laptop_run("diff -r --exclude .git . ../restored")
    assert compared.code == 0, compared.stdout


@pytest.mark.long
async def test_a_sweep_runs_on_every_node_and_its_results_arrive(bed: JobBed) -> None:
    for host in bed.hosts:
        await host.run("touch /tmp/open")
    done = await (await start_sweep(bed, "first", "--grid x=1..4")).finish(timeout=300)
    assert done.code == 0, done.stdout + done.stderr
    results = await results_of(bed, "first")
    assert {x: r["metrics"]["loss"] for x, r in results.items()} == {1: 18, 2: 36, 3: 54, 4: 72}
    hosts = await bed.laptop_run("cat sweeps/first/runs/*/files/model.txt")
    assert set(hosts.stdout.split("host-")[1:]) <= {h.name[5:] for h in bed.hosts}


@pytest.mark.long
async def test_a_stopped_job_leaves_no_process_on_any_node(bed: JobBed) -> None:
    done = await bed.laptop_run(
        "shoal job submit mine --code . --detach --id hang -- python hang.py"
    )
    assert done.code == 0, done.stderr
    for host in bed.hosts[:2]:
        await until(partial(runs, host, "ray::hang"), "the tasks run", timeout=120)
    stopped = await bed.laptop_run("shoal job stop mine hang")
    assert stopped.code == 0, stopped.stderr
    assert "stopped" in stopped.stderr
    await until(lambda: not any(runs(host, "hang") for host in bed.hosts), "nothing is left")


@pytest.mark.long
async def test_a_worker_that_joins_later_gets_code_and_packages(bed: JobBed) -> None:
    done = await bed.laptop_run(
        "shoal job submit mine --code . --requirements requirements.txt -- python everywhere.py 3"
    )
    assert done.code == 0, done.stdout + done.stderr
    assert result(done.stdout) == [[host.address, 3, 6] for host in bed.hosts]


@pytest.mark.long
async def test_following_goes_on_after_a_cut_link(bed: JobBed) -> None:
    following = await bed.laptop.popen(
        "cd code && exec shoal job submit mine --code . -- python count.py",
        env=NO_RAY,
    )
    printed = b""
    while b"line 1500\n" not in printed:
        printed += await following.stdout.read(65536)
    async with bed.laptop.cut_off():
        line = b""
        while b"lost the connection" not in line:
            line = await following.stderr.readline()
            assert line
        await bed.head.run("touch /tmp/go")
    done = await following.finish(timeout=180)
    text = printed.decode() + done.stdout
    numbers = [int(line.split()[1]) for line in text.splitlines() if line.startswith("line ")]
    assert (done.code, numbers) == (0, list(range(3000)))


@pytest.mark.long
async def test_a_sweep_survives_a_killed_laptop_a_power_loss_and_the_loss_of_the_heads_ray(
    bed: JobBed,
) -> None:
    for host in bed.hosts:
        await host.run("rm -f /tmp/open")
    laptop = await start_sweep(bed, "faults", "--grid x=1..6")
    runs = bed.laptop.root() / "home/me/code/sweeps/faults/runs"
    await until(lambda: len(starts(bed, "faults")) >= 5, "every node has runs", timeout=240)
    await until((runs / "0001").exists, "the first result is here")
    laptop.kill()
    await bed.hosts[1].kill()
    await bed.head.run("kill -9 $(pgrep -x gcs_server)")
    before = starts(bed, "faults")
    for host in running(bed):
        await host.run("touch /tmp/open")
    done = await bed.laptop_run("shoal sweep resume sweeps/faults", timeout=900)
    assert done.code == 0, done.stdout + done.stderr
    results = await results_of(bed, "faults")
    assert {x: r["metrics"]["loss"] for x, r in results.items()} == {x: 18 * x for x in range(1, 7)}
    after = starts(bed, "faults")
    assert len(after) > len(before)
    assert after.count(1) == before.count(1), "what is done is not repeated"


def running(bed: JobBed) -> list[Host]:
    return [host for host in bed.hosts if host.running]


def starts(bed: JobBed, name: str, *hosts: Host) -> list[int]:
    """The runs that were started on hosts, by their x."""
    logs = [host.root() / f"tmp/{name}.log" for host in hosts or running(bed)]
    return [int(x) for log in logs if log.exists() for x in log.read_text().split()]


async def start_sweep(bed: JobBed, name: str, arguments: str) -> Running:
    return await bed.laptop.popen(
        f"cd code && exec shoal sweep run.py mine {arguments} --requirements requirements.txt "
        f"-o sweeps/{name} -- --log /tmp/{name}.log",
        env=NO_RAY,
    )


async def results_of(bed: JobBed, name: str) -> dict[int, dict[str, Any]]:
    shown = await bed.laptop_run(f"shoal sweep show sweeps/{name} --json")
    return {result["params"]["x"]: result for result in json.loads(shown.stdout)}


def runs(host: Host, word: str) -> bool:
    """Whether a process of the host has this word on its command line."""
    for pid in host.pids():
        with contextlib.suppress(OSError):
            if word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                return True
    return False
