"""Real Ray on spot instances, with a controller."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from tests.providers.aws.aws_bed import CLUSTER, Bed, cluster_file
from tests.providers.local.ssh_bed import USE_OUR_RAY
from tests.simcloud.cloud import SimCloud
from tests.simcloud.hosts import Host

_RAY = "--disable-usage-stats --object-store-memory=100000000"
_CONTROL = "home/ubuntu/.shoal/controller"


@contextlib.asynccontextmanager
async def spot_cluster(workers: int, **settings: Any) -> AsyncIterator[Bed]:
    """A head without CPUs, and this many spot workers with one CPU each."""
    async with SimCloud() as cloud:
        bed = Bed(cloud, await cloud.laptop())
        types = cluster_file()["available_node_types"]
        types["head"]["resources"] = {"CPU": 0}
        types["worker"].update(resources={"CPU": 1}, min_workers=workers, max_workers=workers)
        types["worker"]["node_config"]["InstanceMarketOptions"] = {"MarketType": "spot"}
        await bed.write(
            max_workers=workers,
            shoal=settings,
            available_node_types=types,
            setup_commands=[USE_OUR_RAY],
            head_start_ray_commands=[
                "ray stop", f"ulimit -n 65536; ray start --head --port=6379 {_RAY}",
            ],
            worker_start_ray_commands=["ray stop", f"ray start --address=$RAY_HEAD_IP:6379 {_RAY}"],
        )  # fmt: skip
        await bed.up(timeout=300)
        yield bed


def instances(bed: Bed, role: str) -> list[str]:
    """The ids of the head or the workers that are not terminated."""
    filters = [
        {"Name": "tag:shoal-cluster", "Values": [CLUSTER]},
        {"Name": "tag:ray-node-type", "Values": [role]},
        {"Name": "instance-state-name", "Values": ["pending", "running"]},
    ]
    pages = bed.ec2.describe_instances(Filters=filters)["Reservations"]
    return [record["InstanceId"] for page in pages for record in page["Instances"]]


def head_of(bed: Bed) -> Host:
    (head,) = instances(bed, "head")
    return bed.cloud.ec2.host(head)


def state(bed: Bed) -> dict[str, Any]:
    """The controller's state file."""
    path = head_of(bed).root() / _CONTROL / "state.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def ready_workers(bed: Bed) -> set[str]:
    nodes = state(bed).get("nodes", ())
    return {n["id"] for n in nodes if n["role"] == "worker" and n["phase"] == "ready"}
