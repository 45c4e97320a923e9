"""`shoal up`, `exec`, `stop`, `start` and `down` on GCP, with a fake Ray on simulated
hosts."""

from __future__ import annotations

import json
import signal

import pytest

from tests.polling import until
from tests.providers.gcp.gcp_bed import Bed, cluster_file, forbid_rules_and_accounts
from tests.providers.local.ssh_bed import SHOAL
from tests.simcloud.keys import new_key

pytestmark = pytest.mark.simcloud

UP = f"exec env SHOAL_HOME=$HOME/.shoal {SHOAL} up c.yaml --yes --json"


async def test_a_cluster_comes_up_runs_commands_stops_starts_and_leaves_nothing(bed: Bed) -> None:
    bed.cloud.gce.store.project_metadata["enable-oslogin"] = "TRUE"
    await bed.write(cluster_name="My_Run.1")
    await bed.up()
    done = await bed.shoal("exec c.yaml hostname")
    assert done.code == 0, done.stderr
    assert done.stdout.startswith("shoal-my-run-1-"), done.stdout
    stopped = await bed.shoal("stop c.yaml --yes")
    assert stopped.code == 0, stopped.stdout + stopped.stderr
    assert {vm.state for vm in bed.cloud.gce.store.vms.values()} == {"stopped"}
    assert "with 50 GB" in stopped.stdout + stopped.stderr
    for options in ("", " --all-regions"):
        listed = await bed.shoal(f"ls{options}")
        assert "stopped: disk only" in listed.stdout, listed.stdout + listed.stderr
    started = await bed.shoal("start c.yaml --yes")
    assert started.code == 0, started.stdout + started.stderr
    await bed.down(home="~/another-laptop")


async def test_a_caller_who_may_create_neither_rules_nor_accounts_uses_those_of_the_project(
    bed: Bed,
) -> None:
    gce = bed.cloud.gce
    email = await forbid_rules_and_accounts(bed.cloud)
    await bed.write(provider={**cluster_file()["provider"], "service_account": email})
    await bed.up()
    accounts = [vm.resource["serviceAccounts"][0]["email"] for vm in gce.store.vms.values()]
    assert accounts == [email] * 3
    await bed.down()


async def test_an_instance_with_another_host_key_than_google_reports_gets_no_login(
    bed: Bed,
) -> None:
    hosts = bed.cloud.gce.hosts
    types = cluster_file()["available_node_types"]
    types["worker"]["min_workers"] = 0
    await bed.write(available_node_types=types)
    hosts.published_key = new_key("somebody-else").public
    done = await bed.shoal("up c.yaml --yes", timeout=120)
    assert done.code != 0
    assert "host key" in (done.stdout + done.stderr).lower(), done.stdout + done.stderr
    hosts.published_key = ""
    await bed.down()


@pytest.mark.long
async def test_a_worker_preempted_during_its_setup_is_replaced_in_the_same_up(bed: Bed) -> None:
    types = cluster_file()["available_node_types"]
    types["worker"]["node_config"]["scheduling"] = [{"preemptible": True}]
    await bed.write(available_node_types=types, worker_setup_commands=["mkdir /tmp/begun; sleep 8"])
    store = bed.cloud.gce.store
    running = await bed.laptop.popen(UP)

    def in_setup() -> list[str]:
        workers = [vm for vm in store.vms.values() if vm.market == "spot" and vm.state == "running"]
        hosts = {vm.name: bed.cloud.gce.hosts.host(vm.id) for vm in workers}
        return [
            name for name, host in hosts.items() if host and (host.root() / "tmp/begun").exists()
        ]

    await until(in_setup, "a worker is being set up", timeout=60)
    preempted = in_setup()[0]
    await bed.cloud.gce.preempt(preempted, 0)
    events = [json.loads(line) async for line in running.stdout]
    assert await running.wait() == 0, events[-1]
    (warning,) = [e for e in events if e["event"] == "warning"]
    assert "launching a replacement" in warning["what"]
    assert preempted not in {vm.name for vm in store.vms.values()}, "it is deleted, not stopped"
    assert len(store.vms) == 3
    await bed.down()


async def test_up_adopts_the_instances_of_a_killed_up(bed: Bed) -> None:
    running = await bed.laptop.popen(UP)
    async for line in running.stdout:
        if json.loads(line).get("phase") == "booting":
            break
    running.send_signal(signal.SIGKILL)
    await running.wait()
    before = {vm.id for vm in bed.cloud.gce.store.vms.values()}
    assert len(before) == 3
    events = await bed.up()
    assert events[-1]["nodes"] == 3
    assert {vm.id for vm in bed.cloud.gce.store.vms.values()} == before
    await bed.down()


async def test_ctrl_c_ends_an_up_that_waits_for_google(bed: Bed) -> None:
    bed.cloud.gce.calls.operations.take_s = 100
    running = await bed.laptop.popen(UP)
    # The first of its operations, which Google accepts at once.
    await until(lambda: bed.cloud.gce.store.firewalls, "a rule is accepted", timeout=60)
    bed.cloud.gce.calls.operations.take_s = 0.1
    running.send_signal(signal.SIGINT)
    assert await running.wait(30) != 0
    await bed.down(home="~/another-laptop")
