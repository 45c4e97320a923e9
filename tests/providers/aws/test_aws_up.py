"""`shoal up` and `shoal down` against an account in which something is always a little odd."""

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
    pages = bed.ec2.describe_instances(Filters=tags.cluster_filter(CLUSTER))["Reservations"]
    return [record for page in pages for record in page["Instances"]]


def of_kind(bed: Bed, kind: str) -> dict[str, Any]:
    return next(i for i in instances(bed) if tags.as_dict(i["Tags"])["ray-node-type"] == kind)


def launch_data(bed: Bed, id: str) -> bytes:
    """The parts of what an instance was launched with, one after the other."""
    answer = bed.ec2.describe_instance_attribute(InstanceId=id, Attribute="userData")
    whole = email.message_from_bytes(base64.b64decode(answer["UserData"]["Value"]))
    return b"".join(bytes(part.get_payload(decode=True) or b"") for part in whole.walk())


async def killed_when_booting(bed: Bed) -> None:
    """Have an `up` killed as soon as its machines are asked for."""
    laptop = await bed.laptop.popen(UP)
    async for line in laptop.stdout:
        if json.loads(line)["event"] == "node":
            break
    laptop.send_signal(signal.SIGKILL)
    await laptop.wait()


async def test_a_plan_tells_what_would_be_made_and_its_price_and_makes_nothing(bed: Bed) -> None:
    done = await bed.laptop.run(f"{SHOAL} plan c.yaml")
    assert done.code == 0, done.stderr
    assert "+ create" in done.stderr
    assert "/h" in done.stderr
    assert not set(bed.cloud.ledger.answered()) & {"RunInstances", "ImportKeyPair", "CreateRole"}


async def test_a_cluster_comes_up_is_found_again_and_goes_without_a_trace(bed: Bed) -> None:
    events = await bed.up()
    assert events[-1]["event"] == "ready"
    assert events[-1]["nodes"] == 3
    assert bed.cloud.ledger.answered()["RunInstances"] == 2

    for record in instances(bed):
        labels = tags.as_dict(record["Tags"])
        kind = labels["ray-node-type"]
        assert labels["ray-cluster-name"] == CLUSTER
        assert labels["ray-user-node-type"] == kind
        assert record["MetadataOptions"]["HttpTokens"] == "required"
        assert ("IamInstanceProfile" in record) == (kind == "head")
        assert b"shutdown -h now" in launch_data(bed, record["InstanceId"]), "also without autostop"
    await _each_has_a_key_of_its_own(bed)

    # New connections are greeted with the new keys.
    (await bed.laptop.run("rm -rf /tmp/shoal-*")).require("hanging up")
    again = await bed.up()
    assert again[-1]["event"] == "unchanged"
    assert bed.cloud.ledger.answered()["RunInstances"] == 2

    await bed.down(home="~/another-laptop")
    done = await bed.shoal("down c.yaml --yes")
    assert done.code == 0
    assert "nothing to terminate" in done.stderr


@pytest.mark.long
async def test_machines_that_the_file_no_longer_asks_for_are_replaced_when_a_person_agrees(
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
    assert planned.stderr.count("- terminate") == 3, planned.stderr
    assert "(c5.xlarge" in planned.stderr
    assert set(bed.running()) == before

    events = await bed.up()
    assert events[-1]["nodes"] == 2
    assert not set(bed.running()) & before
    assert {rental.type for rental in bed.cloud.ledger.running()} == {"c5.large", "c5.xlarge"}
    assert (await bed.up())[-1]["event"] == "unchanged"
    await bed.down()


async def _each_has_a_key_of_its_own(bed: Bed) -> None:
    """What was handed over at launch, and can be read on the machine, is good no more."""
    pinned = set()
    for record in instances(bed):
        id = record["InstanceId"]
        host = bed.cloud.ec2.host(id)
        file = f"~/.shoal/aws/us-west-2/shoal-{CLUSTER}/known_hosts/{id}"
        line = (await bed.laptop.run(f"cat {file}")).require("reading the pin").stdout.strip()
        now = await host.run("cat /etc/ssh/ssh_host_ed25519_key.pub")
        assert line.split()[1:3] == now.stdout.split()[:2]
        handed_over = (await host.run("cat /var/lib/cloud/instance/user-data.txt")).stdout
        assert line.split()[2] not in handed_over
        pinned.add(line.split()[2])
    assert len(pinned) == 3


async def test_an_impostor_is_refused_before_anything_is_said_to_it(bed: Bed) -> None:
    """Between launch and first contact, another key answers at the head's address."""
    bed.cloud.ec2.boot_delay(600)
    await killed_when_booting(bed)
    bed.cloud.ec2.boot_delay(0)
    head = of_kind(bed, "head")

    def runs() -> bool:
        return bool(of_kind(bed, "head")["State"]["Name"] == "running")

    await until(runs, "the head has booted")
    new_key = "cd /etc/ssh && rm ssh_host_* && ssh-keygen -A && pkill -HUP -o -x sshd"
    (await bed.cloud.ec2.host(head["InstanceId"]).run(new_key)).require("posing as the head")
    done = await bed.shoal("up c.yaml --yes")
    assert done.code != 0
    assert "host key" in done.stderr
    await bed.down()


async def test_listings_that_lag_hide_nothing_from_a_down_elsewhere(bed: Bed) -> None:
    bed.cloud.faults.lag_listings(8)
    laptop = await bed.laptop.popen(UP)
    await until(lambda: len(bed.running()) == 3, "all machines are asked for")
    laptop.send_signal(signal.SIGKILL)
    await laptop.wait()
    await bed.down(home="~/another-laptop")


async def test_credentials_that_expire_midway_leave_nothing_that_down_does_not_find(
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


async def test_two_people_who_bring_up_one_cluster_at_once_get_one_cluster(bed: Bed) -> None:
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


async def test_machines_that_a_killed_up_left_booting_are_taken_over(bed: Bed) -> None:
    bed.cloud.ec2.boot_delay(600)
    await killed_when_booting(bed)
    laptop = await bed.laptop.popen(UP)
    events = []
    async for line in laptop.stdout:
        events.append(json.loads(line))
        if events[-1]["event"] == "plan":  # it has found them, and they still boot
            bed.cloud.ec2.boot_delay(0)
    assert await laptop.wait() == 0, events[-1]
    assert events[-1]["nodes"] == 3
    assert len(bed.cloud.ledger.rentals) == 3
    await bed.down()


async def test_what_is_ended_behind_our_back_is_replaced(bed: Bed) -> None:
    await bed.up()
    ended = [of_kind(bed, kind)["InstanceId"] for kind in ("head", "worker")]
    bed.ec2.terminate_instances(InstanceIds=ended)
    events = await bed.up()
    plan = [e["action"] for e in events if e["event"] == "plan"]
    assert plan == ["create", "create", "restart"]
    assert len(bed.running()) == 3
    await bed.down()


@pytest.mark.parametrize("kind", ["worker", "head"])
async def test_a_machine_that_is_taken_while_it_boots_is_replaced_in_the_same_up(
    bed: Bed, kind: str
) -> None:
    bed.cloud.ec2.boot_delay(600)
    laptop = await bed.laptop.popen(UP)
    await until(lambda: len(bed.running()) == 3, "all machines are asked for")
    bed.ec2.terminate_instances(InstanceIds=[of_kind(bed, kind)["InstanceId"]])
    bed.cloud.ec2.boot_delay(0)
    events = [json.loads(line) async for line in laptop.stdout]
    assert await laptop.wait() == 0, events[-1]
    (warning,) = [e for e in events if e["event"] == "warning"]
    assert "another is asked for" in warning["what"]
    assert events[-1]["nodes"] == 3
    assert len(bed.running()) == 3
    await bed.down()


async def test_a_head_that_somebody_ended_is_missed_and_the_rest_can_still_go(bed: Bed) -> None:
    await bed.up()
    bed.ec2.terminate_instances(InstanceIds=[of_kind(bed, "head")["InstanceId"]])
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
async def test_a_head_that_hangs_is_told_and_ended_all_the_same(bed: Bed) -> None:
    await bed.up()
    await bed.cloud.ec2.host(of_kind(bed, "head")["InstanceId"]).freeze()
    nodes = json.loads((await bed.shoal("status c.yaml --json")).stdout)["nodes"]
    assert {(node["role"], node["phase"], node["detail"]) for node in nodes} == {
        ("head", "failed", "does not answer"),
        ("worker", "failed", "the head does not answer"),
    }
    await bed.down()


async def test_a_stopped_cluster_starts_again_as_it_was(bed: Bed) -> None:
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
    await _goes_as_its_file_says(bed)


async def _goes_as_its_file_says(bed: Bed) -> None:
    """`down` may only switch machines off, and says what that costs."""
    await bed.write(shoal={"controller": False, "down": "stop"})
    done = await bed.shoal("down c.yaml --yes --json")
    assert done.code == 0, done.stderr
    (warning,) = [e for e in events_of(done) if e["event"] == "warning"]
    assert "per month" in warning["why"]
    assert {i["State"]["Name"] for i in instances(bed)} == {"stopped"}
    await bed.write(shoal={"controller": False})
    await bed.down()
