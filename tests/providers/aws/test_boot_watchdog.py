"""Instances that nobody makes nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from shoal.providers.aws import boot_watchdog
from tests.polling import until
from tests.providers.aws.aws_bed import Bed
from tests.simcloud.cloud import SimCloud

pytestmark = pytest.mark.simcloud


@pytest.fixture
async def bed() -> AsyncIterator[Bed]:
    async with SimCloud() as cloud:
        yield Bed(cloud, await cloud.laptop())


async def launch(bed: Bed, user_data: str) -> str:
    """An instance that anyone with the laptop's key can log in to."""
    ec2 = bed.ec2
    ec2.import_key_pair(KeyName="k", PublicKeyMaterial=bed.cloud.laptop_key.public.encode())
    group = ec2.describe_security_groups(GroupNames=["default"])["SecurityGroups"][0]["GroupId"]
    everyone = [{"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}]
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=everyone)
    (instance,) = ec2.run_instances(
        ImageId="ami-12345678",
        InstanceType="m5.large",
        KeyName="k",
        MinCount=1,
        MaxCount=1,
        UserData=user_data,
        InstanceInitiatedShutdownBehavior="terminate",
    )["Instances"]
    return str(instance["InstanceId"])


def public_address(bed: Bed, id: str) -> str:
    (page,) = bed.ec2.describe_instances(InstanceIds=[id])["Reservations"]
    record: dict[str, Any] = page["Instances"][0]
    return str(record["PublicIpAddress"]) if record["State"]["Name"] == "running" else ""


@pytest.mark.long
async def test_an_instance_ends_itself_when_whoever_set_it_up_has_left(bed: Bed) -> None:
    id = await launch(bed, boot_watchdog.script("ubuntu", 8.0))
    await until(lambda: public_address(bed, id), "it runs")
    command = "ssh -o StrictHostKeyChecking=no ubuntu@{} 'echo here; exec sleep 600'"
    person = await bed.laptop.popen(command.format(public_address(bed, id)))
    assert await person.stdout.readline() == b"here\n"
    uptime = bed.cloud.ec2.host(id).root() / "proc" / "uptime"
    began = float(uptime.read_text().split()[0])
    await until(lambda: float(uptime.read_text().split()[0]) > began + 10, "a lease has passed")
    assert bed.running() == [id], "someone is there"
    person.kill()
    await until(lambda: bed.running() == [], "it has ended", timeout=60)


async def test_an_instance_that_became_a_node_is_left_to_its_lease(bed: Bed) -> None:
    id = await launch(bed, boot_watchdog.script("ubuntu", 25.0))
    await until(lambda: public_address(bed, id), "it runs")
    host = bed.cloud.ec2.host(id)
    await host.run("mkdir .shoal; touch .shoal/lease.lock", user="ubuntu")

    async def is_off_guard() -> bool:
        return (await host.run("pgrep -f '[i]nstance/script'")).code != 0

    await until(is_off_guard, "nobody guards it any more", every=0.3)
    assert bed.running() == [id]


def test_where_leases_are_endless_nobody_is_on_guard() -> None:
    assert boot_watchdog.script("ubuntu", 0.0) == ""
