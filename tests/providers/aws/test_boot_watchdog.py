"""The boot watchdog, which terminates instances that never become nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import boto3
import pytest

from shoal.providers.model import LaunchRequest
from shoal.providers.vm import boot_watchdog
from tests.polling import until
from tests.providers.aws.aws_bed import Bed, cluster_file
from tests.providers.aws.provider_account import Account
from tests.simcloud.cloud import SimCloud

pytestmark = pytest.mark.simcloud


@pytest.fixture
async def bed() -> AsyncIterator[Bed]:
    async with SimCloud() as cloud:
        yield Bed(cloud, await cloud.laptop())


async def launch(bed: Bed, user_data: str) -> str:
    """Launch an instance that allows SSH with the laptop's key."""
    ec2 = bed.ec2
    ec2.import_key_pair(KeyName="k", PublicKeyMaterial=bed.cloud.laptop_key.public.encode())
    group = ec2.describe_security_groups(GroupNames=["default"])["SecurityGroups"][0]["GroupId"]
    allow_all = [{"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}]
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=allow_all)
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
    (reservation,) = bed.ec2.describe_instances(InstanceIds=[id])["Reservations"]
    record: dict[str, Any] = reservation["Instances"][0]
    return str(record["PublicIpAddress"]) if record["State"]["Name"] == "running" else ""


@pytest.mark.long
async def test_an_instance_terminates_itself_when_no_session_has_existed_for_a_lease(
    bed: Bed,
) -> None:
    id = await launch(bed, boot_watchdog.script("ubuntu", 8.0))
    await until(lambda: public_address(bed, id), "it runs")
    command = "ssh -o StrictHostKeyChecking=no ubuntu@{} 'echo here; exec sleep 600'"
    session = await bed.laptop.popen(command.format(public_address(bed, id)))
    assert await session.stdout.readline() == b"here\n"
    uptime = bed.cloud.ec2.host(id).root() / "proc" / "uptime"
    began = float(uptime.read_text().split()[0])
    await until(lambda: float(uptime.read_text().split()[0]) > began + 10, "a lease has passed")
    assert bed.running() == [id], "a session is open"
    session.kill()
    await until(lambda: bed.running() == [], "it is terminated", timeout=60)


async def test_the_watchdog_exits_when_the_lease_of_the_node_starts(bed: Bed) -> None:
    id = await launch(bed, boot_watchdog.script("ubuntu", 25.0))
    await until(lambda: public_address(bed, id), "it runs")
    host = bed.cloud.ec2.host(id)
    await host.run("mkdir .shoal; touch .shoal/lease.lock", user="ubuntu")

    async def has_exited() -> bool:
        return (await host.run("pgrep -f '[i]nstance/part'")).code != 0

    await until(has_exited, "the watchdog has exited", every=0.3)
    assert bed.running() == [id]


async def test_an_ami_made_from_a_node_does_not_bring_the_state_of_that_node(
    account: Account,
) -> None:
    """With the old lease's lock there would be no watchdog, and with its applied state no setup."""
    client = boto3.client("ec2", **account.cloud.ec2.client_options())
    image = client.register_image(Name="made-from-a-node", Architecture="x86_64")["ImageId"]
    disk = account.directory / "disk"
    state = disk / "home" / "ubuntu" / ".shoal"
    state.mkdir(parents=True)
    (state / "lease.lock").touch()
    (state.parent / "data").touch()
    account.cloud.ec2.instances.images.add(image, disk)
    types = cluster_file()["available_node_types"]
    types["head"]["node_config"]["ImageId"] = image
    account.file(available_node_types=types)
    request = LaunchRequest("head", "head", 1, "t")
    (head,) = await account.provider().launch(account.spec, [request])
    host = account.cloud.ec2.host(head.id)
    await until(lambda: host.running, "it runs")
    assert (await host.run("ls -a /home/ubuntu/data")).code == 0
    assert (await host.run("ls /home/ubuntu/.shoal")).code != 0
    await host.run("mkdir /home/ubuntu/.shoal")
    await host.reboot()
    assert (await host.run("ls /home/ubuntu/.shoal")).code == 0, "a reboot keeps the state"


def test_there_is_no_watchdog_if_leases_never_expire() -> None:
    assert boot_watchdog.script("ubuntu", 0.0) == ""
