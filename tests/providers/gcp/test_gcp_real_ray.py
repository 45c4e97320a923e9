"""Ray's own examples for GCP with real Ray on simulated hosts: they come up, grow with the demand,
lose a preempted node, replace it, and go down completely."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest
import yaml

from tests.bootstrap.containers import container_runtimes
from tests.bootstrap.containers.container_runtimes import OPTIONS, REGISTRY
from tests.polling import until
from tests.providers.aws.test_ecr import print_command
from tests.providers.gcp.gcp_bed import Bed
from tests.providers.local.ssh_bed import SHOAL, USE_OUR_RAY
from tests.simcloud.gce_store import PROJECT, Vm
from tests.simcloud.gce_tls import BUNDLE
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


def in_containers(data: dict[str, Any], certificate: str) -> None:
    """Give an example with containers what an image with Docker has, and an image to pull."""
    trusted = f"/etc/docker/certs.d/{REGISTRY}/ca.crt"
    at_boot = "\n".join(
        [
            "#!/bin/bash",
            f"{print_command(certificate)} | install -D /dev/stdin {trusted}",
            "usermod -aG docker ubuntu",
            f"{print_command(container_runtimes.start_script())} | bash",
        ]
    )
    data["docker"]["image"] = f"{REGISTRY}/box:1"
    # A simulated host may have fewer descriptors than the example gives its containers.
    trust = [f"-v {BUNDLE}:{BUNDLE}:ro", f"-e REQUESTS_CA_BUNDLE={BUNDLE}"]
    data["docker"]["run_options"] = [*OPTIONS, *trust]
    for node_type in data["available_node_types"].values():
        item = {"key": "startup-script", "value": at_boot}
        node_type["node_config"]["metadata"] = {"items": [item]}


def vms(bed: Bed, role: str | None = None) -> list[Vm]:
    return [
        vm
        for vm in bed.cloud.gce.store.vms.values()
        if role in (None, vm.resource["labels"]["ray-node-type"]) and vm.state == "running"
    ]


@pytest.mark.parametrize(
    "name",
    [
        "example-minimal-pinned.yaml",
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in ("example-minimal.yaml", "defaults.yaml", "example-full.yaml")
        ),
    ],
)
async def test_rays_example_grows_replaces_a_preempted_node_and_leaves_nothing(
    bed: Bed, name: str
) -> None:
    data = adapted(name)
    environment = ""
    if data.get("docker"):
        container_runtimes.require("docker")
        certificate = await container_runtimes.start_registry(await bed.cloud.boot())
        (await bed.laptop.run("cat > ca.crt", stdin=certificate)).require("trusting the registry")
        in_containers(data, certificate)
        environment = "SSL_CERT_FILE=ca.crt "
    text = json.dumps(data)
    (await bed.laptop.run("cat > c.yaml", stdin=text)).require("writing the cluster file")
    done = await bed.laptop.run(f"{environment}{SHOAL} up c.yaml --yes", timeout=400)
    assert done.code == 0, done.stdout + done.stderr
    minimum = sum(t.get("min_workers", 0) for t in data.get("available_node_types", {}).values())
    assert len(vms(bed)) == 1 + minimum

    async def run(command: str) -> str:
        done = await bed.shoal(f"exec c.yaml {shlex.quote(command)}")
        return done.require(command).stdout

    await run(f"{print_command(PROGRAM)} > program.py")
    await run("nohup python program.py > out.txt 2>&1 & sleep 0.1")

    async def runs_everywhere() -> bool:
        hosts = {bed.cloud.gce.host(vm.name).address for vm in vms(bed)}
        return len(hosts) == 3 and set((await run("cat where.txt || true")).split()) == hosts

    await until(runs_everywhere, "the program runs on every node", timeout=200, every=0.5)
    assert {vm.market for vm in vms(bed, "worker")} == {"spot"}
    preempted = vms(bed, "worker")[0].name
    await bed.cloud.gce.preempt(preempted, 10)
    await until(
        lambda: preempted not in {vm.name for vm in vms(bed)}, "the instance ends", timeout=60
    )
    await until(runs_everywhere, "another node has taken its place", timeout=200, every=0.5)
    why = await bed.shoal("why c.yaml")
    assert "the provider terminates the instance at" in why.stdout, why.stdout
    status = await bed.shoal("status c.yaml")
    assert status.code == 0, status.stdout + status.stderr
    await bed.down(home="~/another-laptop")
