"""Baked images of nodes in containers: later nodes neither pull nor set anything up."""

from __future__ import annotations

from typing import Any

import pytest

from tests.bootstrap.containers import container_runtimes
from tests.bootstrap.containers.container_runtimes import OPTIONS, REGISTRY
from tests.providers.aws.aws_bed import Bed, cluster_file
from tests.providers.aws.test_baked_images import images, search
from tests.providers.aws.test_ecr import print_command
from tests.simcloud.hosts import Host

pytestmark = [pytest.mark.simcloud, pytest.mark.long]

IN_CONTAINER = "docker exec box"


def node_types(workers: int, at_boot: str) -> dict[str, Any]:
    types: dict[str, Any] = cluster_file()["available_node_types"]
    types["worker"]["min_workers"] = workers
    for node_type in types.values():
        node_type["node_config"]["UserData"] = at_boot
    return types


async def up(bed: Bed) -> None:
    done = await bed.laptop.run("SSL_CERT_FILE=ca.crt shoal up c.yaml --yes", timeout=400)
    assert done.code == 0, done.stdout + done.stderr


async def setup_runs(host: Host) -> list[str]:
    done = await host.run(f"{IN_CONTAINER} cat /tmp/setup-runs")
    return done.require("reading what setup left").stdout.split()


async def check_images_have_no_token(bed: Bed, node: Host) -> None:
    token = (await node.run("cat /home/ubuntu/.shoal/auth_token")).stdout.strip()
    assert token
    for image in images(bed):
        disk = bed.cloud.ec2.instances.images.disk(image["ImageId"])
        assert disk is not None
        assert search(disk, token) == [], image["Name"]


async def test_a_container_and_its_setup_are_part_of_an_image(bed: Bed) -> None:
    container_runtimes.require("docker")
    registry = await bed.cloud.boot()
    certificate = await container_runtimes.start_registry(registry)
    (await bed.laptop.run("cat > ca.crt", stdin=certificate)).require("trusting the registry")
    # As on an AMI with Docker, which starts at boot.
    trusted = f"/etc/docker/certs.d/{REGISTRY}/ca.crt"
    at_boot = "\n".join(
        [
            "#!/bin/bash",
            f"{print_command(certificate)} | install -D /dev/stdin {trusted}",
            "usermod -aG docker ubuntu",
            f"{print_command(container_runtimes.start_script())} | bash",
        ]
    )
    settings = {
        "docker": {
            "image": f"{REGISTRY}/box:1",
            "container_name": "box",
            "run_options": OPTIONS,
            "pull_before_run": False,
        },
        "shoal": {"controller": False, "bake": True},
        "setup_commands": ["cat /etc/hostname >> /tmp/setup-runs"],
    }
    await bed.write(**settings, available_node_types=node_types(1, at_boot))
    await up(bed)
    before = set(bed.running())
    first = [await setup_runs(bed.cloud.ec2.host(id)) for id in before]
    await check_images_have_no_token(bed, bed.cloud.ec2.host(next(iter(before))))

    await registry.power_off()
    await bed.write(available_node_types=node_types(2, at_boot))
    await up(bed)

    (added,) = set(bed.running()) - before
    assert await setup_runs(bed.cloud.ec2.host(added)) in first
    await bed.down("--images")
