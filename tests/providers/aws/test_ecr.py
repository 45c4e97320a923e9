"""Images of containers: looked for in their registry before a machine is there, and pulled from
AWS's own registry without anybody logging in."""

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
async def shelf(bed: Bed) -> AsyncIterator[Bed]:
    """The same, with a private registry that the laptop trusts."""
    host = await bed.cloud.boot()
    certificate = await container_runtimes.start_registry(host, LOGIN)
    (await bed.laptop.run("cat > ca.crt", stdin=certificate)).require("trusting the registry")
    yield bed


def contained(image: str, gib: int) -> dict[str, Any]:
    """What the file says of containers from an image, on machines with such a root volume."""
    types: dict[str, Any] = cluster_file()["available_node_types"]
    root = {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": gib}}
    for kind in types.values():
        kind["node_config"]["BlockDeviceMappings"] = [root]
    return {
        "docker": {"image": f"{REGISTRY}/{image}", "container_name": "box"},
        "available_node_types": types,
        "shoal": {"controller": False, "registry": {"server": REGISTRY, "username": "me"}},
    }


def given(text: str) -> str:
    """A command that prints a text of several lines."""
    return f"echo {base64.b64encode(text.encode()).decode()} | base64 -d"


async def doctor(bed: Bed, password: str) -> Result:
    secret = f"SHOAL_REGISTRY_PASSWORD='{password}' SSL_CERT_FILE=ca.crt"
    return await bed.laptop.run(f"{secret} shoal doctor c.yaml --json")


async def test_an_image_that_will_not_fit_or_is_not_there_is_told_beforehand(shelf: Bed) -> None:
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
        await shelf.write(**contained(image, 100))
        found = json.loads((await doctor(shelf, password)).stdout)
        assert {f["what"] for f in found} == ({what} if what else set())
        assert {f["fix"] for f in found if fix} == ({fix} if fix else set())
        assert password not in json.dumps(found)


@pytest.mark.long
async def test_images_of_an_account_are_pulled_without_a_login_onto_a_disk_that_is_large_enough(
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
    file = contained("box:1", 1)
    for kind in file["available_node_types"].values():
        kind["min_workers"] = 0
    await bed.write(
        **file,
        initialization_commands=[
            known,
            f"{given(certificate)} | sudo install -D /dev/stdin {trusted}",
            f"{given(container_runtimes.start_script())} | sudo bash",
            "sudo usermod -aG docker ubuntu",
        ],
    )
    house = {"image": f"{SERVER}/box:1", "container_name": "box", "run_options": OPTIONS}
    await bed.write(docker=house, shoal={"controller": False})
    up = "SSL_CERT_FILE=ca.crt shoal up c.yaml --yes --json"
    found = [e for e in events_of(await bed.laptop.run(up)) if e["event"] == "finding"]
    fixes = {e["what"]: e["fix"] for e in found if e["severity"] == "error"}
    assert fixes[f"the image {SERVER}/box:1 does not fit on a root volume of 1 GiB"] == (
        "VolumeSize: 20"
    )
    assert not bed.running()

    larger = contained("box:1", 20)["available_node_types"]
    larger["worker"]["min_workers"] = 0
    await bed.write(available_node_types=larger)
    done = await bed.laptop.run(up, timeout=300)
    assert done.code == 0, done.stdout + done.stderr
    (head,) = bed.running()
    machine = bed.cloud.ec2.host(head)
    assert "box" in (await machine.run("docker ps --format '{{.Names}}'")).stdout
    left = await machine.run("grep -rl 123456789012-auth /home /etc /tmp /run /var/log")
    assert left.stdout == "", "the token is nowhere"
    assert "auth-token" not in done.stdout + done.stderr
    await bed.down()
