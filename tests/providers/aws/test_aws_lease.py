"""Instances that nobody needs any more, and what instances say of themselves."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from shoal.providers.aws import tags
from tests.polling import until
from tests.providers.aws.aws_bed import CLUSTER, SHOAL, Bed, cluster_file
from tests.simcloud.cloud import SimCloud
from tests.simcloud.hosts import Host

pytestmark = [pytest.mark.simcloud, pytest.mark.asyncio(loop_scope="module")]

CONTROL = "/home/ubuntu/.shoal/controller"
SETTINGS = {"lease": "12s", "autostop": "1h"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def looked_after() -> AsyncIterator[Bed]:
    """A head and two spot workers with a controller, and a stand-in for Ray."""
    async with SimCloud() as cloud:
        bed = Bed(cloud, await cloud.laptop())
        types = cluster_file()["available_node_types"]
        types["worker"]["node_config"]["InstanceMarketOptions"] = {"MarketType": "spot"}
        await bed.write(available_node_types=types, shoal=SETTINGS)
        await bed.up()
        yield bed


@pytest_asyncio.fixture(loop_scope="module")
async def bed() -> AsyncIterator[Bed]:
    async with SimCloud() as cloud:
        bed = Bed(cloud, await cloud.laptop())
        await bed.write()
        yield bed


def records(bed: Bed, kind: str = "*") -> list[dict[str, Any]]:
    """The cluster's instances that are not over."""
    filters = [*tags.cluster_filter(CLUSTER), {"Name": "tag:ray-node-type", "Values": [kind]}]
    pages = bed.ec2.describe_instances(Filters=filters)["Reservations"]
    found = [record for page in pages for record in page["Instances"]]
    return [r for r in found if r["State"]["Name"] not in ("shutting-down", "terminated")]


def hosts(bed: Bed, kind: str) -> list[Host]:
    return [bed.cloud.ec2.host(r["InstanceId"]) for r in records(bed, kind)]


def statuses(bed: Bed) -> set[str]:
    return {tags.as_dict(record["Tags"])["ray-node-status"] for record in records(bed)}


async def signalled(head: Host, what: signal.Signals, *who: str) -> None:
    """Send a signal to the controller or its supervisor."""
    locks = " ".join(f"{CONTROL}/{name}.lock" for name in who)
    (await head.run(f"for f in {locks}; do kill -{what:d} $(cat $f); done")).require("the signal")


def state(head: Host) -> dict[str, Any]:
    path = head.root() / CONTROL[1:] / "state.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def promised_at(host: Host) -> float:
    """When the controller last answered a machine."""
    path = host.root() / "home/ubuntu/.shoal/lease"
    return path.stat().st_mtime if path.exists() else 0.0


async def are_renewed(machines: list[Host]) -> None:
    """Return when all of these have got a promise that was made from now on."""
    now = time.time() + 1  # an older one may just be arriving
    renewed = lambda: all(promised_at(machine) > now for machine in machines)  # noqa: E731
    await until(renewed, "all have a new promise", timeout=60)


@pytest.mark.long
async def test_leases_outlive_a_controller_that_is_sent_away_and_comes_back(
    looked_after: Bed,
) -> None:
    (head,) = hosts(looked_after, "head")
    machines = [head, *hosts(looked_after, "worker")]
    await are_renewed(machines)
    await looked_after.write(shoal={**SETTINGS, "controller": False})
    await looked_after.up()
    assert not (head.root() / CONTROL[1:] / "config.json").exists()
    await are_renewed(machines)
    await looked_after.write(shoal=SETTINGS)
    await looked_after.up()
    await are_renewed(machines)
    await until(lambda: state(head).get("at", 0) > time.time() - 5, "the controller is back")


async def test_a_spot_notice_reaches_the_controller_which_gives_up_what_is_no_node_yet(
    looked_after: Bed,
) -> None:
    (head,) = hosts(looked_after, "head")
    first, second = (r["InstanceId"] for r in records(looked_after, "worker"))
    await until(lambda: len(state(head).get("nodes", ())) == 3, "all are known", timeout=60)
    await looked_after.cloud.ec2.spot_notice(first, 1000)
    running = looked_after.running
    await until(lambda: first not in running(), "it is given up", timeout=60)
    assert second in running(), "nobody else was meant"

    def told() -> list[str]:
        return [d["why"] for d in state(head)["decisions"] if d["cause"] == "interruption"]

    await until(told, "it is told", timeout=60)
    assert told()[0].startswith("the provider terminates the instance at")


async def test_a_controller_that_is_killed_is_back_before_a_lease_is_over(
    looked_after: Bed,
) -> None:
    (head,) = hosts(looked_after, "head")
    before = looked_after.running()
    await signalled(head, signal.SIGKILL, "controller")
    await are_renewed([head, *hosts(looked_after, "worker")])
    assert looked_after.running() == before


async def test_instances_end_themselves_when_nobody_looks_after_them_any_more(
    looked_after: Bed,
) -> None:
    (head,) = hosts(looked_after, "head")
    async with looked_after.laptop.cut_off():
        await signalled(head, signal.SIGSTOP, "supervisor", "controller")
        ledger = looked_after.cloud.ledger
        await until(lambda: ledger.running() == [], "none costs money any more", timeout=120)
    await looked_after.down()


@pytest.mark.long
async def test_instances_whose_head_is_gone_terminate_themselves(bed: Bed) -> None:
    await bed.write(shoal={"controller": False, "lease": "4s"})
    await bed.up()
    assert statuses(bed) == {"up-to-date"}
    assert bed.cloud.ledger.calls()["CreateTags"] <= 3, "said together"
    (head,) = records(bed, "head")
    await bed.cloud.ec2.host(head["InstanceId"]).kill()
    alone = [head["InstanceId"]]
    await until(lambda: bed.running() == alone, "the workers have ended", timeout=60)
    await bed.down()


@pytest.mark.long
async def test_instances_whose_launcher_died_end_themselves_the_head_too(bed: Bed) -> None:
    """Nobody asked for an autostop, and nobody lives who knows of them."""
    await bed.write(shoal={"lease": "5s"})
    up = f"exec env SHOAL_HOME=$HOME/.shoal {SHOAL} up c.yaml --yes --json"
    laptop = await bed.laptop.popen(up)
    async for line in laptop.stdout:
        if json.loads(line)["event"] == "node":
            break
    laptop.send_signal(signal.SIGKILL)
    await laptop.wait()
    assert len(bed.running()) == 3
    await until(lambda: bed.running() == [], "none costs money any more", timeout=90)
    await bed.down()


async def test_a_node_that_failed_says_so(bed: Bed) -> None:
    await bed.write(worker_setup_commands=["exit 3"])
    done = await bed.shoal("up c.yaml --yes")
    assert done.code == 4
    assert statuses(bed) == {"up-to-date", "update-failed"}
    await bed.down()
