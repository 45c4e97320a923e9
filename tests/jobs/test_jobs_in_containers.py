"""A job and a sweep on a cluster whose Ray is in containers."""

from __future__ import annotations

import json

import pytest

from tests.bootstrap.containers.container_bed import container_bed
from tests.jobs.programs import result, write_project
from tests.jobs.ssh_job_bed import NO_RAY, RAY_OPTIONS, hide_ray, package_index
from tests.polling import until
from tests.providers.local.ssh_bed import Bed
from tests.simcloud.console import Result

pytestmark = [pytest.mark.simcloud, pytest.mark.ray, pytest.mark.long]


async def shoal(bed: Bed, command: str) -> Result:
    return await bed.laptop.run(f"cd ~/code && shoal {command}", env=NO_RAY, timeout=600)


async def test_a_job_and_a_sweep_run_in_the_containers_of_the_head_and_a_worker() -> None:
    """The head's container has a normal user and the worker's has root. The worker joins for the
    job."""
    async with container_bed(
        head_start_ray_commands=["ray stop", f"ray start --head --port=6379 {RAY_OPTIONS}"],
        worker_start_ray_commands=[
            "ray stop", f"ray start --address=$RAY_HEAD_IP:6379 {RAY_OPTIONS}",
        ],
        min_workers=0,
        max_workers=1,
        idle_timeout_minutes=0.1,
        available_node_types={"local.cluster.node": {"resources": {"CPU": 1}}},
        shoal={"controller": True},
    ) as bed:  # fmt: skip
        await hide_ray(bed.laptop)
        await write_project(bed.laptop, await package_index(bed.cloud))
        done = await shoal(
            bed,
            "job submit ../c.yaml --start --code . --requirements requirements.txt --id first -- "
            "python everywhere.py 2",
        )
        assert done.code == 0, done.stdout + done.stderr
        assert result(done.stdout) == [[host.address, 2, 6] for host in bed.hosts]
        restored = await shoal(bed, "job code ../c.yaml first ../restored")
        assert restored.code == 0, restored.stderr
        compared = await bed.laptop.run("diff -r code restored")
        assert compared.code == 0, compared.stdout

        done = await shoal(
            bed, "sweep run.py ../c.yaml --grid x=1..4 --requirements requirements.txt -o out"
        )
        assert done.code == 0, done.stdout + done.stderr
        shown = json.loads((await shoal(bed, "sweep show out --json")).stdout)
        losses = {entry["params"]["x"]: entry["metrics"]["loss"] for entry in shown}
        assert losses == {1: 12, 2: 24, 3: 36, 4: 48}

        async def is_released() -> bool:
            return await bed.read(bed.workers[0], "docker ps -aq; ls -d ~/.shoal || true") == ""

        await until(is_released, "the idle worker is released without a trace", timeout=120)
        assert (await shoal(bed, "down ../c.yaml --yes")).code == 0
        assert await bed.read(bed.head, "docker ps -aq") == ""
