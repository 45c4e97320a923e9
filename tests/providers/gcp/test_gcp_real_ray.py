"""Ray's own examples for GCP with real Ray on simulated hosts: they come up, grow with the demand,
lose a preempted node, replace it, and go down completely."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from tests.polling import until
from tests.providers.gcp.gcp_bed import Bed
from tests.providers.local.ssh_bed import USE_OUR_RAY
from tests.simcloud.gce_store import PROJECT, Vm
from tests.simcloud.hosts import Host
from tests.spec.conftest import SHARED

EXAMPLES = SHARED / "ray-yaml" / "gcp"

pytestmark = [
    pytest.mark.simcloud,
    pytest.mark.ray,
    pytest.mark.skipif(not EXAMPLES.exists(), reason="the example files are not available"),
]

# Needs every node, and goes on when one of them is lost.
PROGRAM = """
import ray, time
ray.init(log_to_driver=False, logging_level="ERROR")

@ray.remote(num_cpus=2, max_restarts=-1, max_task_retries=-1)
class Actor:
    def where(self):
        return ray.util.get_node_ip_address()

actors = [Actor.remote() for _ in range(3)]
while True:
    addresses = ray.get([actor.where.remote() for actor in actors])
    with open("where.txt", "w") as file:
        file.write(" ".join(sorted(addresses)))
    time.sleep(0.5)
"""
# Many nodes share one computer.
SMALL = "ray start --object-store-memory=100000000 --disable-usage-stats"


def adapted(name: str) -> dict[str, Any]:
    """Ray's example with a project, and start commands for this computer."""
    data: dict[str, Any] = yaml.safe_load((EXAMPLES / name).read_text())
    data["provider"]["project_id"] = PROJECT
    data["setup_commands"] = [USE_OUR_RAY]
    data["head_setup_commands"] = []
    for role, options in (
        ("head", "--head --port=6379"),
        ("worker", "--address=$RAY_HEAD_IP:6379"),
    ):
        commands = data.get(f"{role}_start_ray_commands") or ["ray stop", f"ray start {options}"]
        data[f"{role}_start_ray_commands"] = [re.sub(r"\bray start\b", SMALL, c) for c in commands]
    return data


def vms(bed: Bed, role: str) -> list[Vm]:
    return [
        vm
        for vm in bed.cloud.gce.store.vms.values()
        if vm.resource["labels"]["ray-node-type"] == role and vm.state == "running"
    ]


def head_of(bed: Bed) -> Host:
    (head,) = vms(bed, "head")
    return bed.cloud.gce.host(head.name)


def ready_workers(bed: Bed) -> set[str]:
    path = head_of(bed).root() / "home/ubuntu/.shoal/controller/state.json"
    nodes = json.loads(path.read_text())["nodes"] if path.exists() else ()
    return {n["id"] for n in nodes if n["role"] == "worker" and n["phase"] == "ready"}


async def test_rays_example_grows_replaces_a_preempted_node_and_leaves_nothing(bed: Bed) -> None:
    text = json.dumps(adapted("example-minimal-pinned.yaml"))
    (await bed.laptop.run("cat > c.yaml", stdin=text)).require("writing the cluster file")
    events = await bed.up(timeout=300)
    assert events[-1]["nodes"] == 1
    head = head_of(bed)
    await head.run("cat > program.py", stdin=PROGRAM, user="ubuntu")
    command = "nohup python program.py > out.txt 2>&1 &"
    (await bed.shoal(f"exec c.yaml '{command}'")).require("starting the program")

    where = head.root() / "home/ubuntu/where.txt"

    def runs_on(addresses: set[str]) -> bool:
        return where.exists() and set(where.read_text().split()) == addresses

    def runs_everywhere() -> bool:
        hosts = [head.address, *(bed.cloud.gce.host(id).address for id in ready_workers(bed))]
        return len(hosts) == 3 and runs_on(set(hosts))

    await until(runs_everywhere, "the program runs on every node", timeout=200, every=0.5)
    assert {vm.market for vm in vms(bed, "worker")} == {"spot"}
    preempted = vms(bed, "worker")[0].name
    await bed.cloud.gce.preempt(preempted, 10)
    await until(
        lambda: preempted not in ready_workers(bed) and runs_everywhere(),
        "another node has taken its place",
        timeout=200,
        every=0.5,
    )
    why = await bed.shoal("why -n minimal")
    assert "the provider terminates the instance at" in why.stdout, why.stdout
    status = await bed.shoal("status c.yaml")
    assert status.code == 0, status.stdout + status.stderr
    await bed.down(home="~/another-laptop")
