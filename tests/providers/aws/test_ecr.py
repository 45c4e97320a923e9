"""Container images: checked in their registry before any launch, and pulled from ECR without a
manual login."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.bootstrap.containers import container_runtimes
from tests.bootstrap.containers.container_runtimes import OPTIONS, REGISTRY
from tests.providers.aws.aws_bed import Bed, cluster_file, events_of
from tests.simcloud.console import Result

pytestmark = pytest.mark.simcloud

LOGIN = "me:a secret"
SERVER = "123456789012.dkr.ecr.us-west-2.amazonaws.com"


@pytest.fixture
async def registry(bed: Bed) -> AsyncIterator[Bed]:
    """The test bed with a private registry that the laptop trusts."""
    host = await bed.cloud.boot()
    certificate = await container_runtimes.start_registry(host, LOGIN)
    (await bed.laptop.run("cat > ca.crt", stdin=certificate)).require("trusting the registry")
    yield bed


def container_settings(image: str, gib: int) -> dict[str, Any]:
    """The settings for containers from an image, on root volumes of this size."""
    types: dict[str, Any] = cluster_file()["available_node_types"]
    root = {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": gib}}
    for node_type in types.values():
        node_type["node_config"]["BlockDeviceMappings"] = [root]
    return {
        "docker": {"image": f"{REGISTRY}/{image}", "container_name": "box"},
        "available_node_types": types,
        "shoal": {"controller": False, "registry": {"server": REGISTRY, "username": "me"}},
    }


def print_command(text: str) -> str:
    """A command that prints a text of several lines."""
    return f"echo {base64.b64encode(text.encode()).decode()} | base64 -d"


async def doctor(bed: Bed, password: str) -> Result:
    secret = f"SHOAL_REGISTRY_PASSWORD='{password}' SSL_CERT_FILE=ca.crt"
    return await bed.laptop.run(f"{secret} shoal doctor c.yaml --json")


async def test_an_image_that_is_missing_or_too_large_is_reported_by_preflight(
    registry: Bed,
) -> None:
    expected = {
        ("box:1", "a secret"): ("", ""),
        ("box:1", "a guess"): (f"the registry of {REGISTRY}/box:1 denied access", ""),
        ("box:7", "a secret"): (
            f"image not found: {REGISTRY}/box:7",
            f"docker: {{image: {REGISTRY}/box:1}}",
        ),
        ("huge:1", "a secret"): (
            f"the image {REGISTRY}/huge:1 does not fit on a root volume of 100 GiB",
            "VolumeSize: 5420",
        ),
    }
    for (image, password), (what, fix) in expected.items():
        await registry.write(**container_settings(image, 100))
        findings = json.loads((await doctor(registry, password)).stdout)
        assert {f["what"] for f in findings} == ({what} if what else set())
        assert {f["fix"] for f in findings if fix} == ({fix} if fix else set())
        assert password not in json.dumps(findings)


@pytest.mark.long
async def test_ecr_images_are_pulled_without_a_login_onto_a_volume_that_is_large_enough(
    bed: Bed,
) -> None:
    container_runtimes.require("docker")
    host = await bed.cloud.boot()
    certificate = await container_runtimes.start_registry(
        host, "AWS:123456789012-auth-token", f"{SERVER}:443"
    )
    trusted = f"/etc/docker/certs.d/{SERVER}/ca.crt"
    known = f"echo {host.address} {SERVER} | sudo tee -a /etc/hosts"
    (await bed.laptop.run(known)).require("knowing the registry")
    (await bed.laptop.run("cat > ca.crt", stdin=certificate)).require("trusting the registry")
    file = container_settings("box:1", 1)
    for node_type in file["available_node_types"].values():
        node_type["min_workers"] = 0
    await bed.write(
        **file,
        initialization_commands=[
            known,
            f"{print_command(certificate)} | sudo install -D /dev/stdin {trusted}",
            f"{print_command(container_runtimes.start_script())} | sudo bash",
            "sudo usermod -aG docker ubuntu",
        ],
    )
    docker = {"image": f"{SERVER}/box:1", "container_name": "box", "run_options": OPTIONS}
    await bed.write(docker=docker, shoal={"controller": False})
    up = "SSL_CERT_FILE=ca.crt shoal up c.yaml --yes --json"
    findings = [e for e in events_of(await bed.laptop.run(up)) if e["event"] == "finding"]
    fixes = {e["what"]: e["fix"] for e in findings if e["severity"] == "error"}
    assert fixes[f"the image {SERVER}/box:1 does not fit on a root volume of 1 GiB"] == (
        "VolumeSize: 20"
    )
    assert not bed.running()

    larger = container_settings("box:1", 20)["available_node_types"]
    larger["worker"]["min_workers"] = 0
    await bed.write(available_node_types=larger)
    done = await bed.laptop.run(up, timeout=300)
    assert done.code == 0, done.stdout + done.stderr
    (head,) = bed.running()
    host_of_head = bed.cloud.ec2.host(head)
    assert "box" in (await host_of_head.run("docker ps --format '{{.Names}}'")).stdout
    left = await host_of_head.run("grep -rl 123456789012-auth /home /etc /tmp /run /var/log")
    assert left.stdout == "", "the token is not stored anywhere"
    assert "auth-token" not in done.stdout + done.stderr
    await bed.down()
