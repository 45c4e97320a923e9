"""Real Ray on simulated hosts. All tests share one cluster."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.polling import until
from tests.providers.local.ssh_bed import ON_EVERY_NODE, USE_OUR_RAY, Bed, actions, read_gcs
from tests.simcloud.cloud import SimCloud

pytestmark = [
    pytest.mark.simcloud,
    pytest.mark.ray,
    pytest.mark.asyncio(loop_scope="module"),
]


LONG_JOB = """
import pathlib, time, ray
ray.init(log_to_driver=False)

@ray.remote(num_cpus=1)
def slow():
    while not pathlib.Path("/tmp/enough").exists():
        time.sleep(0.1)
    return "survived"

done = slow.remote()
pathlib.Path("/tmp/running").touch()
print(ray.get(done), flush=True)
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bed() -> AsyncIterator[Bed]:
    async with SimCloud() as cloud:
        laptop, *hosts = await asyncio.gather(cloud.laptop(), *(cloud.boot() for _ in range(2)))
        bed = Bed(cloud, laptop, hosts)
        await laptop.run("mkdir code; cat > code/where.py", stdin=ON_EVERY_NODE)
        await laptop.run("cat > code/long.py", stdin=LONG_JOB)
        await bed.write(file_mounts={"~/code": "code"}, setup_commands=[USE_OUR_RAY])
        await bed.up()
        yield bed
        done = await bed.shoal("down c.yaml --yes")
        assert done.code == 0, done.stderr
        for host in hosts:
            assert await bed.read(host, "pgrep -f '[r]ay::|[r]aylet|[g]cs_server' || true") == ""
            assert await bed.read(host, "crontab -l 2>/dev/null || true") == ""


async def test_a_program_runs_on_every_node(bed: Bed) -> None:
    done = await bed.shoal("exec c.yaml 'python code/where.py'")
    assert done.code == 0, done.stderr
    assert done.stdout.strip() == str(sorted(host.address for host in bed.hosts))


async def test_status_reports_what_ray_says_of_each_node(bed: Bed) -> None:
    done = await bed.shoal("status c.yaml --json")
    assert done.code == 0
    nodes = json.loads(done.stdout)["nodes"]
    assert [(n["name"], n["phase"]) for n in nodes] == [("head", "ready"), ("worker-1", "ready")]
    assert all(node["total"]["CPU"] >= 1 for node in nodes)


@pytest.mark.skipif(shutil.which("faketime") is None, reason="faketime is not installed")
@pytest.mark.parametrize("skew", ["-3h", "+3h"])
async def test_a_laptop_with_another_time_sees_the_same_cluster(bed: Bed, skew: str) -> None:
    done = await bed.laptop.run(f"faketime -f {skew} shoal status c.yaml --json", timeout=60)
    assert done.code == 0, done.stdout + done.stderr
    status = json.loads(done.stdout)
    assert [node["phase"] for node in status["nodes"]] == ["ready", "ready"]
    done = await bed.laptop.run(f"faketime -f {skew} shoal up c.yaml --yes", timeout=120)
    assert done.code == 0, done.stdout + done.stderr
    assert "is up and matches its file" in done.stdout + done.stderr


async def test_ray_refuses_clients_without_the_token(bed: Bed) -> None:
    read = ["python", "-c", read_gcs(f"{bed.head.address}:6379")]
    done = await bed.workers[0].run(read, user="ubuntu")
    assert done.code != 0
    assert "auth" in (done.stdout + done.stderr).lower()
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "/home/ubuntu/.shoal/auth_token"}
    done = await bed.workers[0].run(read, user="ubuntu", env=token)
    assert done.code == 0, done.stderr


async def test_the_dashboard_listens_only_on_the_head(bed: Bed) -> None:
    from_inside = await bed.head.run("curl -s -o /dev/null http://127.0.0.1:8265/")
    from_outside = await bed.workers[0].run(
        f"curl -s -o /dev/null --max-time 20 http://{bed.head.address}:8265/"
    )
    assert (from_inside.code, from_outside.code) == (0, 7)


@pytest.mark.long
async def test_a_job_survives_an_up_without_restart(bed: Bed) -> None:
    job = await bed.laptop.popen("exec shoal exec c.yaml 'python code/long.py'")
    running = bed.head.root() / "tmp/running"
    await until(running.exists, "the job runs", timeout=120)
    await bed.laptop.run("echo '# changed' >> code/where.py")
    events = await bed.up("--no-restart")
    assert {action for action, _ in actions(events)} == {"update"}
    for host in bed.hosts:
        (host.root() / "tmp/enough").touch()
    done = await job.finish(timeout=120)
    assert done.stdout.strip() == "survived", done.stderr


@pytest.mark.long
async def test_changed_files_restart_the_head_and_its_workers(bed: Bed) -> None:
    await bed.laptop.run("echo '# changed again' >> code/where.py")
    events = await bed.up()
    assert actions(events) == [("restart", "head"), ("restart", "worker-1")]
    done = await bed.shoal("exec c.yaml 'python code/where.py'")
    assert done.stdout.strip() == str(sorted(host.address for host in bed.hosts)), done.stderr


@pytest.mark.long
async def test_a_rebooted_worker_recovers_without_a_command(bed: Bed) -> None:
    await bed.workers[0].reboot()
    done = await bed.shoal("status c.yaml")
    assert done.code == 4
    await until(lambda: is_ready(bed), "all nodes are ready", timeout=120, every=2)


@pytest.mark.long
async def test_a_rebooted_head_recovers_without_a_command(bed: Bed) -> None:
    await bed.head.reboot()
    await until(lambda: is_ready(bed), "all nodes are ready", timeout=180, every=2)
    done = await bed.shoal("exec c.yaml 'python code/where.py'")
    assert done.stdout.strip() == str(sorted(host.address for host in bed.hosts)), done.stderr


@pytest.mark.long
async def test_a_driver_ends_with_its_gcs_and_the_head_recovers(bed: Bed) -> None:
    """By itself, a driver would not notice, and wait without end."""
    running = bed.head.root() / "tmp/running"
    running.unlink(missing_ok=True)
    for host in bed.hosts:
        (host.root() / "tmp/enough").unlink(missing_ok=True)
    job = await bed.laptop.popen("exec shoal exec c.yaml 'python code/long.py'")
    await until(running.exists, "the job runs", timeout=120)
    await bed.head.run("kill -9 $(pgrep -x gcs_server)")
    done = await job.finish(timeout=180)
    assert done.code != 0
    assert "the Ray of mine died while the command ran" in done.stderr
    await until(lambda: is_ready(bed), "all nodes are ready", timeout=180, every=2)
    done = await bed.shoal("why c.yaml --json")
    heads = [d["action"] for d in json.loads(done.stdout)["decisions"] if d["subject"] == "head"]
    assert "failed" not in heads


async def is_ready(bed: Bed) -> bool:
    return (await bed.shoal("status c.yaml")).code == 0
