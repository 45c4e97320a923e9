"""Autoscaling on AWS: the controller launches and stops instances with the head's own role. The
tests share one cluster; each brings it up first if another has changed it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.polling import until
from tests.providers.aws.aws_bed import Bed, cluster_file
from tests.providers.local.ssh_bed import USE_OUR_RAY
from tests.simcloud.cloud import SimCloud

pytestmark = [
    pytest.mark.simcloud,
    pytest.mark.ray,
    pytest.mark.asyncio(loop_scope="module"),
]

ACTORS = """
import ray
ray.init(log_to_driver=False, logging_level="ERROR")

@ray.remote(num_cpus=1)
class Worker:
    def where(self):
        return ray.util.get_node_ip_address()

# Both at once: neither releases its CPU before the other has one.
workers = [Worker.remote() for _ in range(2)]
print("done on", len(set(ray.get([worker.where.remote() for worker in workers]))))
"""
RAY = "--disable-usage-stats --object-store-memory=100000000"
WORKER = {"node_config": {"InstanceType": "m5.large"}, "resources": {"CPU": 1}, "max_workers": 2}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_bed() -> AsyncIterator[Bed]:
    async with SimCloud() as cloud:
        bed = Bed(cloud, await cloud.laptop())
        cloud.ec2.permissions.limits_roles = True
        types = cluster_file()["available_node_types"]
        types["head"]["resources"] = {"CPU": 0}
        types["worker"] = WORKER
        await bed.write(
            max_workers=2,
            shoal={"bake": True},
            idle_timeout_minutes=0.1,
            upscaling_speed=10,
            available_node_types=types,
            setup_commands=[USE_OUR_RAY, "cat /proc/sys/kernel/random/uuid >> ~/setup-runs"],
            file_mounts={"~/code": "code"},
            head_start_ray_commands=[
                "ray stop", f"ulimit -n 65536; ray start --head --port=6379 {RAY}",
            ],
            worker_start_ray_commands=["ray stop", f"ray start --address=$RAY_HEAD_IP:6379 {RAY}"],
        )  # fmt: skip
        await bed.laptop.run("mkdir code; cat > code/actors.py", stdin=ACTORS)
        yield bed


@pytest_asyncio.fixture(loop_scope="module")
async def cluster(shared_bed: Bed) -> Bed:
    """The shared cluster, up."""
    head = instances(shared_bed, "head")
    if not head or head[0]["State"]["Name"] != "running":
        events = await shared_bed.up(timeout=300)
        assert [e for e in events if e["event"] == "warning"] == []
    return shared_bed


def instances(bed: Bed, role: str) -> list[dict[str, Any]]:
    """The records of the head or the workers that are not terminated."""
    filters = [{"Name": "tag:ray-node-type", "Values": [role]}]
    pages = bed.ec2.describe_instances(Filters=filters)["Reservations"]
    records = [record for page in pages for record in page["Instances"]]
    return [r for r in records if r["State"]["Name"] not in ("shutting-down", "terminated")]


def worker_images(bed: Bed) -> list[str]:
    """The images of workers that can be used."""
    filters = [
        {"Name": "tag:ray-user-node-type", "Values": ["worker"]},
        {"Name": "state", "Values": ["available"]},
    ]
    found = bed.ec2.describe_images(Owners=["self"], Filters=filters)["Images"]
    return [str(image["ImageId"]) for image in found]


def head_of(bed: Bed) -> str:
    return str(instances(bed, "head")[0]["InstanceId"])


def workers_are_stopped(bed: Bed) -> bool:
    return [i["State"]["Name"] for i in instances(bed, "worker")] == ["stopped"] * 2


def creations(bed: Bed) -> tuple[int, int]:
    """How many key pairs and security groups have been created."""
    calls = bed.cloud.ledger.answered()
    return calls["ImportKeyPair"], calls["CreateSecurityGroup"]


async def run_actors(bed: Bed) -> None:
    """Run the program to completion while the laptop is disconnected."""
    out = bed.cloud.ec2.host(head_of(bed)).root() / "home/ubuntu/out.txt"
    command = "rm -f out.txt; nohup python code/actors.py > out.txt 2>&1 &"
    (await bed.shoal(f"exec c.yaml '{command}'")).require("starting the program")
    async with bed.laptop.cut_off():
        await until(lambda: "done on 2" in out.read_text(), "the actors have run", timeout=180)


async def test_workers_launch_for_work_stop_when_idle_and_start_again_for_more_work(
    cluster: Bed,
) -> None:
    before = creations(cluster)
    await run_actors(cluster)
    assert len(instances(cluster, "worker")) == 2
    assert creations(cluster) == before, "the head creates only instances"
    launched = len(cluster.cloud.ledger.rentals)
    await until(
        lambda: workers_are_stopped(cluster), "the workers are stopped", timeout=120, every=0.5
    )
    status: dict[str, Any] = {}

    async def are_reported() -> bool:
        status.update(json.loads((await cluster.shoal("status c.yaml --json")).stdout))
        return len(status["controller"]["state"]["gone"]) == 2

    # EC2 reports them as stopped a moment before the controller does.
    await until(are_reported, "the controller reports both", every=0.5)
    assert (await cluster.shoal("status c.yaml")).code == 0
    assert [node["phase"] for node in status["nodes"]] == ["ready", "stopped", "stopped"]
    gone = status["controller"]["state"]["gone"]
    assert [node["ended"][:8] for node in gone] == ["idle for"] * 2
    await run_actors(cluster)
    assert len(cluster.cloud.ledger.rentals) == launched, "the stopped ones were started"


@pytest.mark.long
async def test_a_worker_becomes_an_image_and_later_workers_start_from_it(cluster: Bed) -> None:
    """The head's own role makes the image."""
    if not worker_images(cluster):
        await run_actors(cluster)
        await until(lambda: worker_images(cluster), "a worker has become an image")
    (image,) = worker_images(cluster)
    first = instances(cluster, "worker")
    cluster.ec2.terminate_instances(InstanceIds=[record["InstanceId"] for record in first])
    await until(lambda: not instances(cluster, "worker"), "the workers are gone")

    await run_actors(cluster)

    workers = instances(cluster, "worker")
    assert {record["ImageId"] for record in workers} == {image}
    runs = [
        (await cluster.cloud.ec2.host(record["InstanceId"]).run("cat ~ubuntu/setup-runs")).stdout
        for record in workers
    ]
    assert len(runs[0].split()) == 1 and runs == [runs[0]] * 2, "setup ran once, for the image"
    assert len(worker_images(cluster)) == 1


async def test_the_head_gets_the_region_and_no_credentials(cluster: Bed) -> None:
    printed = await cluster.cloud.ec2.host(head_of(cluster)).run(
        "cat ~ubuntu/.shoal/controller/config.json"
    )
    settings = json.loads(printed.stdout)["spec"]["provider"]["settings"]
    assert settings["region"] == "us-west-2"
    assert not [key for key in settings if "credential" in key or "secret" in key]


@pytest.mark.long
async def test_an_unused_cluster_stops_itself_including_the_head(
    cluster: Bed,
) -> None:
    await cluster.write(shoal={"bake": True, "down": "stop"})
    await cluster.up("--no-restart --autostop 3s")

    def states() -> set[str]:
        records = [*instances(cluster, "head"), *instances(cluster, "worker")]
        return {record["State"]["Name"] for record in records}

    async with cluster.laptop.cut_off():
        await until(lambda: states() == {"stopped"}, "all are stopped", timeout=180, every=0.5)
    await cluster.write(shoal={"bake": True})


async def test_nothing_is_left_after_down(cluster: Bed) -> None:
    await cluster.down("--images")
