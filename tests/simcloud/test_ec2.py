"""EC2's instances are machines: they come, go, restart and are guarded as EC2's are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from tests.polling import until
from tests.simcloud.cloud import SimCloud
from tests.simcloud.hosts import Host

pytestmark = pytest.mark.simcloud

SSH = ["ssh", "-o", "StrictHostKeyChecking=no", "-o", "ConnectTimeout=30"]
# Where none is let in, which is seen with a little patience.
IN_VAIN = [*SSH[:-1], "ConnectTimeout=1"]
ANYWHERE = {"IpRanges": [{"CidrIp": "0.0.0.0/0"}]}


class Account:
    """boto3, and a key pair, a group and instances made with it."""

    def __init__(self, cloud: SimCloud) -> None:
        self.cloud = cloud
        self.ec2 = boto3.client("ec2", **cloud.ec2.client_options())
        public = cloud.laptop_key.public.encode()
        self.ec2.import_key_pair(KeyName="mine", PublicKeyMaterial=public)
        self.group = self.ec2.create_security_group(GroupName="g", Description="-")["GroupId"]

    def allow(self, port: int, **source: Any) -> None:
        permission = {"IpProtocol": "tcp", "FromPort": port, "ToPort": port, **source}
        self.ec2.authorize_security_group_ingress(GroupId=self.group, IpPermissions=[permission])

    def run(self, count: int = 1, **more: Any) -> list[str]:
        asked = {
            "ImageId": "ami-12345678",
            "InstanceType": "m5.large",
            "MinCount": count,
            "MaxCount": count,
            "KeyName": "mine",
            "SecurityGroupIds": [self.group],
            **more,
        }
        return [one["InstanceId"] for one in self.ec2.run_instances(**asked)["Instances"]]

    def look(self, instance_id: str) -> dict[str, Any]:
        reply = self.ec2.describe_instances(InstanceIds=[instance_id])
        found: dict[str, Any] = reply["Reservations"][0]["Instances"][0]
        return found

    def state(self, instance_id: str) -> str:
        return str(self.look(instance_id)["State"]["Name"])

    async def reach(self, state: str, *ids: str) -> None:
        def all_there() -> bool:
            return all(self.state(instance_id) == state for instance_id in ids)

        await until(all_there, f"{' '.join(ids)} reach {state}")

    async def running(self, **more: Any) -> tuple[str, str]:
        """Return a new instance that runs, and its public address."""
        (instance_id,) = self.run(**more)
        await self.reach("running", instance_id)
        return instance_id, self.look(instance_id)["PublicIpAddress"]


@pytest.fixture
async def account(cloud: SimCloud) -> AsyncIterator[Account]:
    await cloud.ec2.warm_up()
    yield Account(cloud)


async def test_an_instance_is_pending_until_its_machine_has_booted(
    cloud: SimCloud, account: Account
) -> None:
    cloud.ec2.boot_delay(600)
    (instance_id,) = account.run()
    assert account.state(instance_id) == "pending"
    cloud.ec2.boot_delay(0)
    await account.reach("running", instance_id)
    assert cloud.ec2.host(instance_id).running


async def test_the_named_key_pair_and_an_open_port_let_the_laptop_in(
    laptop: Host, account: Account
) -> None:
    _, address = await account.running()
    closed = await laptop.run([*IN_VAIN, f"ubuntu@{address}", "true"])
    account.allow(22, **ANYWHERE)
    opened = await laptop.run([*SSH, f"ubuntu@{address}", "id -un"])
    assert (closed.code, opened.stdout) == (255, "ubuntu\n")


async def test_another_key_pair_does_not_open_the_door(laptop: Host, account: Account) -> None:
    account.ec2.create_key_pair(KeyName="other")
    account.allow(22, **ANYWHERE)
    _, address = await account.running(KeyName="other")
    result = await laptop.run([*SSH, f"ubuntu@{address}", "true"])
    assert "Permission denied" in result.stderr


async def test_a_private_address_leads_nowhere_from_outside(laptop: Host, account: Account) -> None:
    account.allow(22, **ANYWHERE)
    instance_id, _ = await account.running()
    private = account.look(instance_id)["PrivateIpAddress"]
    assert (await laptop.run([*IN_VAIN, f"ubuntu@{private}", "true"])).code == 255


async def test_a_group_rule_lets_its_members_in_and_no_port_beside_it(
    cloud: SimCloud, account: Account
) -> None:
    account.allow(22, UserIdGroupPairs=[{"GroupId": account.group}])
    ids = account.run(2)
    await account.reach("running", *ids)
    target = account.look(ids[1])["PrivateIpAddress"]
    await cloud.ec2.host(ids[1]).popen(["python", "-m", "http.server", "8000"])

    async def connects(port: int, patience: int = 30) -> bool:
        probe = f"timeout {patience} bash -c '</dev/tcp/{target}/{port}'"
        return (await cloud.ec2.host(ids[0]).run(probe)).code == 0

    assert await connects(22)
    assert not await connects(8000, patience=1)
    account.allow(8000, UserIdGroupPairs=[{"GroupId": account.group}])
    await until(lambda: connects(8000), "the new rule is in force")


async def test_stop_and_start_keep_the_disk_and_change_the_public_address(
    cloud: SimCloud, account: Account
) -> None:
    instance_id, before = await account.running()
    await cloud.ec2.host(instance_id).run("echo kept > /root/note")
    account.ec2.stop_instances(InstanceIds=[instance_id])
    await account.reach("stopped", instance_id)
    assert not cloud.ec2.host(instance_id).running
    account.ec2.start_instances(InstanceIds=[instance_id])
    await account.reach("running", instance_id)
    assert account.look(instance_id)["PublicIpAddress"] != before
    assert (await cloud.ec2.host(instance_id).run("cat /root/note")).stdout == "kept\n"


async def test_a_reboot_through_the_api_restarts_the_machine(
    cloud: SimCloud, account: Account
) -> None:
    instance_id, _ = await account.running()
    host = cloud.ec2.host(instance_id)
    before = host.pid
    account.ec2.reboot_instances(InstanceIds=[instance_id])
    await until(lambda: host.running and host.pid != before, "the machine booted again")
    assert account.state(instance_id) == "running"


@pytest.mark.parametrize(("behaviour", "state"), [("terminate", "terminated"), ("stop", "stopped")])
async def test_a_machine_that_shuts_itself_down_ends_as_its_behaviour_says(
    cloud: SimCloud, account: Account, behaviour: str, state: str
) -> None:
    instance_id, _ = await account.running(InstanceInitiatedShutdownBehavior=behaviour)
    await cloud.ec2.host(instance_id).run("shutdown -h now")
    await account.reach(state, instance_id)


async def test_user_data_runs_as_root_at_the_first_boot(cloud: SimCloud, account: Account) -> None:
    instance_id, _ = await account.running(UserData="#!/bin/sh\nid -un > /opt/ran\n")
    host = cloud.ec2.host(instance_id)

    async def ran() -> bool:
        return (await host.run("cat /opt/ran")).stdout == "root\n"

    await until(ran, "the script ran")


async def test_the_same_token_launches_once_and_other_arguments_are_refused(
    account: Account,
) -> None:
    first = account.run(ClientToken="once")
    assert account.run(ClientToken="once") == first
    with pytest.raises(ClientError, match="IdempotentParameterMismatch"):
        account.run(ClientToken="once", InstanceType="c5.large")


async def test_a_group_in_use_cannot_be_deleted(account: Account) -> None:
    account.run()
    with pytest.raises(ClientError, match="DependencyViolation"):
        account.ec2.delete_security_group(GroupId=account.group)


async def test_everything_that_was_made_is_left_until_it_is_given_back(
    cloud: SimCloud, account: Account
) -> None:
    iam = boto3.client("iam", **cloud.ec2.client_options())
    iam.create_instance_profile(InstanceProfileName="profile")
    (instance_id,) = account.run(ClientToken="token")
    kinds = {thing.kind for thing in await cloud.ec2.leftovers()}
    assert kinds == {"instance", "volume", "security group", "key pair", "instance profile"}
    with pytest.raises(AssertionError, match=instance_id):
        await cloud.assert_nothing_left()

    account.ec2.terminate_instances(InstanceIds=[instance_id])
    await account.reach("terminated", instance_id)
    account.ec2.delete_security_group(GroupId=account.group)
    account.ec2.delete_key_pair(KeyName="mine")
    iam.delete_instance_profile(InstanceProfileName="profile")
    await cloud.assert_nothing_left()

    made_by = {thing.kind: life.made_by.action for thing, life in cloud.ledger.lives.items()}
    assert made_by == {
        "instance": "RunInstances",
        "volume": "RunInstances",
        "security group": "CreateSecurityGroup",
        "key pair": "ImportKeyPair",
        "instance profile": "CreateInstanceProfile",
    }
    assert all(life.gone for life in cloud.ledger.lives.values())
    rental = cloud.ledger.rentals[instance_id]
    assert (rental.asked_by.action, rental.asked_by.token) == ("RunInstances", "token")
    assert rental.ended is not None
    assert 0 < cloud.ledger.cost() < 0.096
    assert cloud.ledger.calls()["RunInstances"] == 1


async def test_the_laptops_aws_environment_is_set_up(laptop: Host, account: Account) -> None:
    script = "import boto3; print(len(boto3.client('ec2').describe_key_pairs()['KeyPairs']))"
    result = await laptop.run(["python", "-c", script])
    assert result.stdout == "1\n", result.stderr


async def test_terminating_a_machine_that_boots_does_not_wait_for_it(
    cloud: SimCloud, account: Account
) -> None:
    cloud.ec2.boot_delay(60)
    (instance_id,) = account.run()
    account.ec2.terminate_instances(InstanceIds=[instance_id])
    await account.reach("terminated", instance_id)


async def test_an_image_has_the_disk_of_its_instance_and_its_snapshot_stays(
    cloud: SimCloud, account: Account
) -> None:
    instance_id, _ = await account.running()
    changes = "echo kept > /home/ubuntu/file; echo kept > /etc/file; rm /etc/debian_version"
    await cloud.ec2.host(instance_id).run(changes)
    labels = [{"Key": "of", "Value": "test"}]
    image = account.ec2.create_image(
        InstanceId=instance_id,
        Name="mine",
        NoReboot=True,
        TagSpecifications=[
            {"ResourceType": "image", "Tags": labels},
            {"ResourceType": "snapshot", "Tags": labels},
        ],
    )["ImageId"]
    assert account.state(instance_id) == "running"
    copy, _ = await account.running(ImageId=image)
    done = await cloud.ec2.host(copy).run(
        "cat /home/ubuntu/file /etc/file; [ -e /etc/debian_version ] || echo removed"
    )
    assert done.stdout == "kept\nkept\nremoved\n"
    (snapshot,) = account.ec2.describe_snapshots(Filters=[{"Name": "tag:of", "Values": ["test"]}])[
        "Snapshots"
    ]
    account.ec2.deregister_image(ImageId=image)
    left = {thing.kind for thing in await cloud.ec2.leftovers()}
    assert "snapshot" in left
    assert "image" not in left
    account.ec2.delete_snapshot(SnapshotId=snapshot["SnapshotId"])
    assert "snapshot" not in {thing.kind for thing in await cloud.ec2.leftovers()}
