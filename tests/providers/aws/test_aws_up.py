"""`shoal up` and `shoal down` against an account with faults."""

from __future__ import annotations

import asyncio
import base64
import email
import json
import signal
from typing import Any

import pytest

from shoal.providers.aws import tags
from tests.polling import until
from tests.providers.aws.aws_bed import CLUSTER, SHOAL, Bed, cluster_file, events_of
from tests.simcloud.calls import Call
from tests.simcloud.ec2 import ACCESS_KEY
from tests.simcloud.faults import Fault, Trouble

UP = f"exec env SHOAL_HOME=$HOME/.shoal {SHOAL} up c.yaml --yes --json"

pytestmark = pytest.mark.simcloud


def instances(bed: Bed) -> list[dict[str, Any]]:
    reservations = bed.ec2.describe_instances(Filters=tags.cluster_filter(CLUSTER))["Reservations"]
    return [record for reservation in reservations for record in reservation["Instances"]]


def first_of_role(bed: Bed, role: str) -> dict[str, Any]:
    return next(i for i in instances(bed) if tags.as_dict(i["Tags"])["ray-node-type"] == role)


def user_data(bed: Bed, id: str) -> bytes:
    """The concatenated parts of an instance's user data."""
    response = bed.ec2.describe_instance_attribute(InstanceId=id, Attribute="userData")
    message = email.message_from_bytes(base64.b64decode(response["UserData"]["Value"]))
    return b"".join(bytes(part.get_payload(decode=True) or b"") for part in message.walk())


async def kill_up_while_booting(bed: Bed) -> None:
    """Start `up` and kill it as soon as its instances are launched."""
    laptop = await bed.laptop.popen(UP)
    async for line in laptop.stdout:
        if json.loads(line)["event"] == "node":
            break
    laptop.send_signal(signal.SIGKILL)
    await laptop.wait()


async def test_plan_shows_what_up_would_create_and_its_price_and_creates_nothing(bed: Bed) -> None:
    done = await bed.laptop.run(f"{SHOAL} plan c.yaml")
    assert done.code == 0, done.stdout
    assert "+ create" in done.stdout
    assert "/h" in done.stdout
    assert not set(bed.cloud.ledger.answered()) & {"RunInstances", "ImportKeyPair", "CreateRole"}


async def test_a_cluster_comes_up_is_found_again_and_goes_down_completely(bed: Bed) -> None:
    events = await bed.up()
    assert events[-1]["event"] == "ready"
    assert events[-1]["nodes"] == 3
    assert bed.cloud.ledger.answered()["RunInstances"] == 2

    for record in instances(bed):
        labels = tags.as_dict(record["Tags"])
        role = labels["ray-node-type"]
        assert labels["ray-cluster-name"] == CLUSTER
        assert labels["ray-user-node-type"] == role
        assert record["MetadataOptions"]["HttpTokens"] == "required"
        assert ("IamInstanceProfile" in record) == (role == "head")
        assert b"shutdown -h now" in user_data(bed, record["InstanceId"]), "also without autostop"
    await _host_keys_were_replaced(bed)

    # New connections use the new host keys.
    (await bed.laptop.run("rm -rf /tmp/shoal-*")).require("closing connections")
    again = await bed.up()
    assert again[-1]["event"] == "unchanged"
    assert bed.cloud.ledger.answered()["RunInstances"] == 2

    await bed.down(home="~/another-laptop")
    done = await bed.shoal("down c.yaml --yes")
    assert done.code == 0
    assert "no nodes to terminate" in done.stderr


@pytest.mark.long
async def test_instances_launched_from_an_older_config_are_replaced_after_confirmation(
    bed: Bed,
) -> None:
    await bed.up()
    before = set(bed.running())
    types = cluster_file()["available_node_types"]
    types["head"]["node_config"]["InstanceType"] = "c5.large"
    types["worker"]["node_config"]["InstanceType"] = "c5.xlarge"
    types["worker"]["min_workers"] = 1
    await bed.write(available_node_types=types)

    kept = await bed.up("--no-restart")
    assert [e["event"] for e in kept if e["event"] in ("warning", "unchanged")] == [
        "warning",
        "unchanged",
    ]
    planned = await bed.shoal("plan c.yaml")
    assert planned.stdout.count("- terminate") == 3, planned.stdout
    assert "(c5.xlarge" in planned.stdout
    assert set(bed.running()) == before

    events = await bed.up()
    assert events[-1]["nodes"] == 2
    assert not set(bed.running()) & before
    assert {rental.type for rental in bed.cloud.ledger.running()} == {"c5.large", "c5.xlarge"}
    assert (await bed.up())[-1]["event"] == "unchanged"
    await bed.down()


async def _host_keys_were_replaced(bed: Bed) -> None:
    """The one-time host keys, readable in the user data, are no longer valid."""
    pinned = set()
    for record in instances(bed):
        id = record["InstanceId"]
        host = bed.cloud.ec2.host(id)
        file = f"~/.shoal/aws/us-west-2/shoal-{CLUSTER}/known_hosts/{id}"
        line = (await bed.laptop.run(f"cat {file}")).require("reading the pin").stdout.strip()
        current = await host.run("cat /etc/ssh/ssh_host_ed25519_key.pub")
        assert line.split()[1:3] == current.stdout.split()[:2]
        user_data_text = (await host.run("cat /var/lib/cloud/instance/user-data.txt")).stdout
        assert line.split()[2] not in user_data_text
        pinned.add(line.split()[2])
    assert len(pinned) == 3


async def test_a_host_with_another_key_is_refused(bed: Bed) -> None:
    """Another host key answers at the head's address before the first connection."""
    bed.cloud.ec2.boot_delay(600)
    await kill_up_while_booting(bed)
    bed.cloud.ec2.boot_delay(0)
    head = first_of_role(bed, "head")

    def runs() -> bool:
        return bool(first_of_role(bed, "head")["State"]["Name"] == "running")

    await until(runs, "the head has booted")
    new_key = "cd /etc/ssh && rm ssh_host_* && ssh-keygen -A && pkill -HUP -o -x sshd"
    (await bed.cloud.ec2.host(head["InstanceId"]).run(new_key)).require("replacing the host key")
    done = await bed.shoal("up c.yaml --yes")
    assert done.code != 0
    assert "host key" in done.stderr
    await bed.down()


@pytest.mark.long
async def test_a_lagging_listing_hides_nothing_from_down_on_another_laptop(bed: Bed) -> None:
    bed.cloud.faults.lag_listings(8)
    laptop = await bed.laptop.popen(UP)
    await until(lambda: len(bed.running()) == 3, "all instances are launched")
    laptop.send_signal(signal.SIGKILL)
    await laptop.wait()
    await bed.down(home="~/another-laptop")


async def test_down_cleans_up_after_credentials_expired_during_up(
    bed: Bed,
) -> None:
    def strikes(call: Call, _: object) -> bool:
        if call.action == "CreateRole":
            bed.cloud.faults.revoke_credentials(ACCESS_KEY)
        return False

    bed.cloud.faults.add(Fault(strikes, Trouble.LOST, when="after"))
    done = await bed.shoal("up c.yaml --yes")
    assert done.code == 5
    assert "unset AWS_ACCESS_KEY_ID" in done.stderr
    bed.cloud.faults.lift_all()
    await bed.down(home="~/another-laptop")


@pytest.mark.long
async def test_two_concurrent_ups_of_one_cluster_end_with_one_cluster(bed: Bed) -> None:
    bed.cloud.ec2.boot_delay(2)
    first, second = await asyncio.gather(
        bed.shoal("up c.yaml --yes", home="~/one"), bed.shoal("up c.yaml --yes", home="~/two")
    )
    assert sorted((first.code, second.code)) in ([0, 5], [0, 0]), first.stderr + second.stderr
    events = events_of(await bed.shoal("up c.yaml --yes --json"))
    assert events[-1]["event"] in ("ready", "unchanged")
    heads = [r for r in instances(bed) if tags.as_dict(r["Tags"])["ray-node-type"] == "head"]
    assert [r["State"]["Name"] for r in heads].count("running") == 1
    assert len(bed.running()) == 3
    await bed.down()


async def test_up_adopts_the_booting_instances_of_a_killed_up(bed: Bed) -> None:
    bed.cloud.ec2.boot_delay(600)
    await kill_up_while_booting(bed)
    laptop = await bed.laptop.popen(UP)
    events = []
    async for line in laptop.stdout:
        events.append(json.loads(line))
        if events[-1]["event"] == "plan":  # it has listed them, and they are still booting
            bed.cloud.ec2.boot_delay(0)
    assert await laptop.wait() == 0, events[-1]
    assert events[-1]["nodes"] == 3
    assert len(bed.cloud.ledger.rentals) == 3
    await bed.down()


async def test_instances_terminated_in_the_console_are_replaced(bed: Bed) -> None:
    await bed.up()
    terminated = [first_of_role(bed, role)["InstanceId"] for role in ("head", "worker")]
    bed.ec2.terminate_instances(InstanceIds=terminated)
    events = await bed.up()
    plan = [e["action"] for e in events if e["event"] == "plan"]
    assert plan == ["create", "create", "restart"]
    assert len(bed.running()) == 3
    await bed.down()


@pytest.mark.parametrize("role", ["worker", pytest.param("head", marks=pytest.mark.long)])
async def test_an_instance_terminated_while_booting_is_replaced_in_the_same_up(
    bed: Bed, role: str
) -> None:
    bed.cloud.ec2.boot_delay(600)
    laptop = await bed.laptop.popen(UP)
    await until(lambda: len(bed.running()) == 3, "all instances are launched")
    bed.ec2.terminate_instances(InstanceIds=[first_of_role(bed, role)["InstanceId"]])
    bed.cloud.ec2.boot_delay(0)
    events = [json.loads(line) async for line in laptop.stdout]
    assert await laptop.wait() == 0, events[-1]
    (warning,) = [e for e in events if e["event"] == "warning"]
    assert "launching a replacement" in warning["what"]
    assert events[-1]["nodes"] == 3
    assert len(bed.running()) == 3
    await bed.down()


async def test_a_terminated_head_is_reported_and_down_still_works(bed: Bed) -> None:
    await bed.up()
    bed.ec2.terminate_instances(InstanceIds=[first_of_role(bed, "head")["InstanceId"]])
    await until(lambda: len(bed.running()) == 2, "the head is gone")
    nodes = json.loads((await bed.shoal("status c.yaml --json")).stdout)["nodes"]
    assert {(node["role"], node["detail"]) for node in nodes} == {
        ("worker", "the cluster has no head")
    }
    done = await bed.shoal("exec c.yaml true")
    assert done.code != 0
    assert "shoal up" in done.stderr
    await bed.down(home="~/another-laptop")


@pytest.mark.long
async def test_a_hanging_head_is_reported_and_down_still_works(bed: Bed) -> None:
    await bed.up()
    await bed.cloud.ec2.host(first_of_role(bed, "head")["InstanceId"]).freeze()
    nodes = json.loads((await bed.shoal("status c.yaml --json")).stdout)["nodes"]
    assert {(node["role"], node["phase"], node["detail"]) for node in nodes} == {
        ("head", "failed", "does not answer"),
        ("worker", "failed", "the head does not answer"),
    }
    await bed.down()


async def test_a_stopped_cluster_starts_again_without_setup(bed: Bed) -> None:
    await bed.write(setup_commands=["echo once >> ~/setups"])
    await bed.up()
    done = await bed.shoal("stop c.yaml --yes")
    assert done.code == 0, done.stderr
    assert {i["State"]["Name"] for i in instances(bed)} == {"stopped"}
    done = await bed.shoal("start c.yaml --json")
    assert done.code == 0, done.stdout + done.stderr
    assert events_of(done)[-1]["nodes"] == 3
    assert len(bed.cloud.ledger.rentals) == 3
    for id in bed.running():
        assert (await bed.cloud.ec2.host(id).run("cat ~ubuntu/setups")).stdout == "once\n"
    await _down_only_stops(bed)


async def _down_only_stops(bed: Bed) -> None:
    """With `shoal: {down: stop}`, `down` stops the instances and reports what that costs."""
    await bed.write(shoal={"controller": False, "down": "stop"})
    done = await bed.shoal("down c.yaml --yes --json")
    assert done.code == 0, done.stderr
    (warning,) = [e for e in events_of(done) if e["event"] == "warning"]
    assert "per month" in warning["why"]
    assert {i["State"]["Name"] for i in instances(bed)} == {"stopped"}
    await bed.write(shoal={"controller": False})
    await bed.down()
