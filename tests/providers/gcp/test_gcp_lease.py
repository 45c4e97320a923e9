"""Leases: an instance that loses its cluster deletes itself with its service account. Without one
it powers off, and the controller deletes it. A file can also limit how long instances exist."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from shoal.providers.gcp import launch_request, lease, names
from shoal.providers.vm.launch_options import LaunchOption, Subnet
from tests.polling import until
from tests.providers.gcp.gcp_bed import (
    CLUSTER,
    Account,
    Bed,
    cluster_file,
    give_account,
    node_config,
)
from tests.simcloud.gce_store import Vm
from tests.simcloud.hosts import Host

CONTROL = "/home/ubuntu/.shoal/controller"
PREFIX = names.instance_prefix(CLUSTER)


def vms(bed: Bed, role: str = "") -> list[Vm]:
    """The cluster's instances, also those that are off."""
    listed = bed.cloud.gce.store.vms.values()
    return [vm for vm in listed if vm.name.startswith(f"{PREFIX}{role[:1]}")]


async def signal_controller(head: Host, sent: signal.Signals) -> None:
    locks = " ".join(f"{CONTROL}/{name}.lock" for name in ("supervisor", "controller"))
    (await head.run(f"for f in {locks}; do kill -{sent:d} $(cat $f); done")).require("signal")


@pytest.mark.simcloud
async def test_instances_delete_themselves_when_the_controller_hangs(bed: Bed) -> None:
    await bed.write(shoal={"lease": "12s", "autostop": "1h"})
    await bed.up()
    head = bed.cloud.gce.host(vms(bed, "head")[0].name)
    async with bed.laptop.cut_off():
        await signal_controller(head, signal.SIGSTOP)
        await until(lambda: vms(bed) == [], "all are deleted", timeout=150)
    assert bed.cloud.gce.store.disks == {}, "their disks cost nothing either"
    await bed.down()


@pytest.mark.simcloud
@pytest.mark.long
@pytest.mark.parametrize("has_account", [True, False])
async def test_a_worker_that_is_cut_off_from_its_head_is_deleted(
    bed: Bed, has_account: bool
) -> None:
    head_config = cluster_file()["available_node_types"]["head"]
    if not has_account:
        scope = "https://www.googleapis.com/auth/cloud-platform"
        account = {"email": give_account(bed.cloud), "scopes": [scope]}
        head_config["node_config"]["serviceAccounts"] = [account]
    await bed.cloud.gce.set_leftover_baseline()
    types = {**cluster_file()["available_node_types"], "head": head_config}
    await bed.write(available_node_types=types, shoal={"lease": "12s", "autostop": "1h"})
    await bed.up()
    (head,), workers = vms(bed, "head"), vms(bed, "worker")
    assert [bool(vm.resource.get("serviceAccounts")) for vm in workers] == [has_account] * 2
    lost, other = workers
    address = bed.cloud.gce.host(head.name).address
    # It still reaches Google.
    done = await bed.cloud.gce.host(lost.name).run(f"ip route add blackhole {address}")
    done.require("cutting the worker off")
    if not has_account:
        await until(lambda: lost.state == "stopped", "it powers off", timeout=120)
    await until(lambda: vms(bed, "worker") == [other], "it is deleted", timeout=150)
    assert len(bed.cloud.gce.store.disks) == 2, "its disk costs nothing either"
    journal = bed.cloud.gce.host(head.name).root() / CONTROL.lstrip("/") / "journal.jsonl"
    assert ("its instance was powered off" in journal.read_text()) is not has_account
    await bed.down()


def test_a_file_can_limit_how_long_instances_exist(tmp_path: Any) -> None:
    account = Account(None, tmp_path)  # type: ignore[arg-type]
    provider = {**cluster_file()["provider"], "max_run_duration": "24h"}
    account.file(provider=provider)
    option = LaunchOption("n1-standard-2", "on-demand", Subnet("default", "us-west1-a", "default"))
    request = launch_request.properties(
        node_config(),
        option,
        cluster=CLUSTER,
        tags={},
        metadata={},
        limits=lease.scheduling(account.spec),
    )
    assert request["scheduling"] == {
        "maxRunDuration": {"seconds": "86400"},
        "instanceTerminationAction": "DELETE",
    }
    account.file(provider=cluster_file()["provider"])
    assert lease.scheduling(account.spec) == {}
