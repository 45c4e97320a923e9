"""Interruptions of spot instances that run real Ray."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.polling import until
from tests.providers.aws.aws_bed import Bed
from tests.providers.aws.spot_bed import head_of, ready_workers, spot_cluster, state

pytestmark = [
    pytest.mark.simcloud,
    pytest.mark.ray,
    pytest.mark.long,
    pytest.mark.asyncio(loop_scope="module"),
]

# Takes longer than its first instance still runs.
TASK = """
import ray, time
ray.init(log_to_driver=False, logging_level="ERROR")

@ray.remote(num_cpus=1, max_retries=5)
def work(seconds):
    open("/tmp/here", "w").close()
    time.sleep(seconds)
    return ray.util.get_node_ip_address()

print("done on", ray.get(work.remote(25)))
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def spot() -> AsyncIterator[Bed]:
    async with spot_cluster(2) as bed:
        yield bed


async def test_the_task_of_an_interrupted_instance_finishes_on_its_replacement(
    spot: Bed,
) -> None:
    await until(
        lambda: len(ready_workers(spot)) == 2, "the workers are ready", timeout=120, every=0.5
    )
    head = head_of(spot)
    await head.run("cat > task.py", stdin=TASK, user="ubuntu")
    command = "nohup python task.py > out.txt 2>&1 &"
    (await spot.shoal(f"exec c.yaml '{command}'")).require("starting the program")

    def busy() -> list[str]:
        host = spot.cloud.ec2.host
        return [id for id in ready_workers(spot) if (host(id).root() / "tmp/here").exists()]

    await until(busy, "the task runs", timeout=120, every=0.5)
    (interrupted,) = busy()
    address = spot.cloud.ec2.host(interrupted).address
    await spot.cloud.ec2.spot_notice(interrupted, 15)
    await until(
        lambda: len(ready_workers(spot) - {interrupted}) == 2,
        "another is ready",
        timeout=120,
        every=0.5,
    )
    out = head.root() / "home/ubuntu/out.txt"
    await until(lambda: "done on" in out.read_text(), "the task has finished", timeout=120)
    assert address not in out.read_text()
    decisions = [(d["action"], d["cause"]) for d in state(spot)["decisions"]]
    assert ("drain", "interruption") in decisions
    explanation = await spot.shoal("why -n mine")
    assert "the provider terminates the instance at" in explanation.stdout
    await until(lambda: interrupted not in spot.running(), "the instance is terminated")


async def test_all_instances_interrupted_at_once_are_replaced_at_once(spot: Bed) -> None:
    before = ready_workers(spot)
    for id in before:
        await spot.cloud.ec2.spot_notice(id, 15)
    await until(
        lambda: len(ready_workers(spot) - before) == len(before),
        "all are replaced",
        timeout=120,
        every=0.5,
    )
    await until(
        lambda: before.isdisjoint(spot.running()), "the interrupted ones are terminated", timeout=60
    )
    await spot.down()
