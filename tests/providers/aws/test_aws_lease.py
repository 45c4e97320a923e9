"""Leases: instances that lose their cluster terminate themselves. And the status tags of nodes."""

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
async def cluster() -> AsyncIterator[Bed]:
    """A head and two spot workers with a controller and a fake Ray."""
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


def records(bed: Bed, role: str = "*") -> list[dict[str, Any]]:
    """The cluster's instances that are not terminated."""
    filters = [*tags.cluster_filter(CLUSTER), {"Name": "tag:ray-node-type", "Values": [role]}]
    pages = bed.ec2.describe_instances(Filters=filters)["Reservations"]
    listed = [record for page in pages for record in page["Instances"]]
    return [r for r in listed if r["State"]["Name"] not in ("shutting-down", "terminated")]


def hosts(bed: Bed, role: str) -> list[Host]:
    return [bed.cloud.ec2.host(r["InstanceId"]) for r in records(bed, role)]


def statuses(bed: Bed) -> set[str]:
    return {tags.as_dict(record["Tags"])["ray-node-status"] for record in records(bed)}


async def send_signal(head: Host, signal_sent: signal.Signals, *names: str) -> None:
    """Send a signal to the controller or its supervisor."""
    locks = " ".join(f"{CONTROL}/{name}.lock" for name in names)
    (await head.run(f"for f in {locks}; do kill -{signal_sent:d} $(cat $f); done")).require(
        "sending the signal"
    )


def state(head: Host) -> dict[str, Any]:
    path = head.root() / CONTROL[1:] / "state.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def renewed_at(host: Host) -> float:
    """When the controller last renewed a node's lease."""
    path = host.root() / "home/ubuntu/.shoal/lease"
    return path.stat().st_mtime if path.exists() else 0.0


async def wait_for_renewal(hosts: list[Host]) -> None:
    """Wait until the leases of all these hosts have been renewed from now on."""
    now = time.time() + 1  # an earlier renewal may just be arriving
    renewed = lambda: all(renewed_at(host) > now for host in hosts)  # noqa: E731
    await until(renewed, "all leases are renewed", timeout=60)


@pytest.mark.long
async def test_leases_are_renewed_while_the_controller_is_removed_and_redeployed(
    cluster: Bed,
) -> None:
    (head,) = hosts(cluster, "head")
    hosts_of_cluster = [head, *hosts(cluster, "worker")]
    await wait_for_renewal(hosts_of_cluster)
    await cluster.write(shoal={**SETTINGS, "controller": False})
    await cluster.up()
    assert not (head.root() / CONTROL[1:] / "config.json").exists()
    await wait_for_renewal(hosts_of_cluster)
    await cluster.write(shoal=SETTINGS)
    await cluster.up()
    await wait_for_renewal(hosts_of_cluster)
    await until(lambda: state(head).get("at", 0) > time.time() - 5, "the controller is back")


async def test_an_interruption_notice_reaches_the_controller_which_replaces_the_instance(
    cluster: Bed,
) -> None:
    (head,) = hosts(cluster, "head")
    first, second = (r["InstanceId"] for r in records(cluster, "worker"))
    await until(lambda: len(state(head).get("nodes", ())) == 3, "all are observed", timeout=60)
    await cluster.cloud.ec2.spot_notice(first, 1000)
    running = cluster.running
    await until(lambda: first not in running(), "it is terminated", timeout=60)
    assert second in running(), "only one was interrupted"

    def reasons() -> list[str]:
        return [d["why"] for d in state(head)["decisions"] if d["cause"] == "interruption"]

    await until(reasons, "it is reported", timeout=60)
    assert reasons()[0].startswith("the provider terminates the instance at")


async def test_a_killed_controller_restarts_before_any_lease_expires(
    cluster: Bed,
) -> None:
    (head,) = hosts(cluster, "head")
    before = cluster.running()
    await send_signal(head, signal.SIGKILL, "controller")
    await wait_for_renewal([head, *hosts(cluster, "worker")])
    assert cluster.running() == before


async def test_instances_terminate_themselves_when_the_controller_hangs(
    cluster: Bed,
) -> None:
    (head,) = hosts(cluster, "head")
    async with cluster.laptop.cut_off():
        await send_signal(head, signal.SIGSTOP, "supervisor", "controller")
        ledger = cluster.cloud.ledger
        await until(lambda: ledger.running() == [], "none is running", timeout=120)
    await cluster.down()


@pytest.mark.long
async def test_instances_whose_head_is_gone_terminate_themselves(bed: Bed) -> None:
    await bed.write(shoal={"controller": False, "lease": "4s"})
    await bed.up()
    assert statuses(bed) == {"up-to-date"}
    assert bed.cloud.ledger.calls()["CreateTags"] <= 3, "tagged in batches"
    (head,) = records(bed, "head")
    await bed.cloud.ec2.host(head["InstanceId"]).kill()
    alone = [head["InstanceId"]]
    await until(lambda: bed.running() == alone, "the workers are terminated", timeout=60)
    await bed.down()


@pytest.mark.long
async def test_instances_of_a_killed_up_terminate_themselves_including_the_head(bed: Bed) -> None:
    """There is no autostop and no controller."""
    await bed.write(shoal={"lease": "5s"})
    up = f"exec env SHOAL_HOME=$HOME/.shoal {SHOAL} up c.yaml --yes --json"
    laptop = await bed.laptop.popen(up)
    async for line in laptop.stdout:
        if json.loads(line)["event"] == "node":
            break
    laptop.send_signal(signal.SIGKILL)
    await laptop.wait()
    assert len(bed.running()) == 3
    await until(lambda: bed.running() == [], "none is running", timeout=90)
    await bed.down()


@pytest.mark.long
async def test_a_failed_node_is_tagged(bed: Bed) -> None:
    await bed.write(worker_setup_commands=["exit 3"])
    done = await bed.shoal("up c.yaml --yes")
    assert done.code == 4
    assert statuses(bed) == {"up-to-date", "update-failed"}
    await bed.down()
