"""A job and a sweep on EC2 instances that come and go with the work, from a laptop without Ray."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest

from tests.jobs.programs import result, write_project
from tests.jobs.ssh_job_bed import NO_RAY, RAY_OPTIONS, hide_ray, package_index
from tests.polling import until
from tests.providers.aws.aws_bed import Bed, cluster_file, events_of
from tests.providers.local.ssh_bed import USE_OUR_RAY
from tests.simcloud.cloud import SimCloud
from tests.simcloud.console import Result
from tests.simcloud.hosts import Host

pytestmark = [pytest.mark.simcloud, pytest.mark.ray, pytest.mark.long]


async def shoal(bed: Bed, command: str) -> Result:
    return await bed.laptop.run(f"cd ~/code && shoal {command}", env=NO_RAY, timeout=600)


async def write_cluster_file(bed: Bed) -> None:
    types = cluster_file()["available_node_types"]
    types["head"]["resources"] = {"CPU": 0}
    types["worker"] |= {"min_workers": 0, "resources": {"CPU": 1}}
    await bed.write(
        shoal={},
        idle_timeout_minutes=0.1,
        upscaling_speed=10,
        available_node_types=types,
        setup_commands=[USE_OUR_RAY],
        head_start_ray_commands=["ray stop", f"ray start --head --port=6379 {RAY_OPTIONS}"],
        worker_start_ray_commands=[
            "ray stop", f"ray start --address=$RAY_HEAD_IP:6379 {RAY_OPTIONS}",
        ],
    )  # fmt: skip


async def test_the_cluster_grows_for_a_job_and_a_sweep_and_shrinks_after_them() -> None:
    async with SimCloud() as cloud:
        bed = Bed(cloud, await cloud.laptop())
        await hide_ray(bed.laptop)
        await write_project(bed.laptop, await package_index(cloud))
        await write_cluster_file(bed)

        done = await shoal(
            bed,
            "job submit ../c.yaml --start --code . --requirements requirements.txt --id first -- "
            "python everywhere.py 1",
        )
        assert done.code == 0, done.stdout + done.stderr
        assert [values for _, *values in result(done.stdout)] == [[2, 6]]

        sweep = await bed.laptop.popen(
            "cd code && exec shoal sweep run.py ../c.yaml --grid x=1..4 --time-limit 5m --json "
            "--requirements requirements.txt -o out -- --log /tmp/log",
            env=NO_RAY,
        )
        await until(lambda: len(hosts_with_runs(bed)) == 2, "both workers have runs", timeout=240)
        for host in hosts_with_runs(bed):
            await host.run("touch /tmp/open")
        done = await sweep.finish(timeout=300)
        assert done.code == 0, done.stdout + done.stderr
        check_prices(events_of(done))
        shown = json.loads((await shoal(bed, "sweep show out --json")).stdout)
        losses = {entry["params"]["x"]: entry["metrics"]["loss"] for entry in shown}
        assert losses == {1: 12, 2: 24, 3: 36, 4: 48}

        def only_the_head_runs() -> bool:
            running = [{"Name": "instance-state-name", "Values": ["running"]}]
            pages = bed.ec2.describe_instances(Filters=running)["Reservations"]
            return [tag_of(i, "ray-node-type") for p in pages for i in p["Instances"]] == ["head"]

        await until(only_the_head_runs, "the workers are stopped", timeout=120, every=0.5)
        restored = await shoal(bed, "job code ../c.yaml first ../restored")
        assert restored.code == 0, restored.stderr
        await bed.down()


def hosts_with_runs(bed: Bed) -> list[Host]:
    found = []
    for id in bed.running():
        with contextlib.suppress(LookupError):  # an instance that is being launched
            host = bed.cloud.ec2.host(id)
            if host.running and (host.root() / "tmp/log").exists():
                found.append(host)
    return found


def tag_of(instance: dict[str, Any], key: str) -> str:
    return str(next(tag["Value"] for tag in instance["Tags"] if tag["Key"] == key))


def check_prices(events: list[dict[str, Any]]) -> None:
    """The price is estimated before the sweep, grows while it runs, and is known at its end."""
    (started,) = [e for e in events if e["event"] == "sweep_started"]
    assert 0 < started["price_per_hour"] < started["max_price_per_hour"]
    assert started["price_at_time_limit"] == pytest.approx(
        started["max_price_per_hour"] * 2 * 5 / 60  # two rounds of five minutes
    )
    costs = [e["cost"] for e in events if e["event"] == "sweep_progress"]
    (ended,) = [e for e in events if e["event"] == "sweep_ended"]
    assert 0 < costs[0] <= costs[-1] <= ended["cost"]
