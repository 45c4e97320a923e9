"""The GCP provider against the simulated Compute Engine, without a login to an instance."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import yaml

from shoal.cluster.observed_cluster import ObservedCluster
from shoal.core.clock import SystemClock
from shoal.core.errors import CapacityError, DeniedError, TransientError
from shoal.ops.up_plan import plan_up
from shoal.providers import provider_for
from shoal.providers.gcp import firewall
from shoal.providers.gcp.gcp_client import GcpClient
from shoal.providers.model import LaunchRequest, State
from shoal.providers.vm.caller_address import this_machine
from shoal.spec import load
from tests.providers.gcp.gcp_bed import CLUSTER, Account, cluster_file, node_config, roles
from tests.simcloud import gce_store
from tests.simcloud.calls import ApiError
from tests.simcloud.gce_store import metadata_of
from tests.spec.conftest import SHARED

EXAMPLES = SHARED / "ray-yaml" / "gcp"

pytestmark = pytest.mark.simcloud

INSERT, BULK = "compute.instances.insert", "compute.instances.bulkInsert"


async def test_a_cluster_is_launched_in_two_calls_and_leaves_nothing(account: Account) -> None:
    by_role = roles(await account.launch())
    assert [len(by_role["head"]), len(by_role["worker"])] == [1, 2]
    for instance in (*by_role["head"], *by_role["worker"]):
        assert instance.state is State.RUNNING
        assert instance.address.startswith("10.")
        assert instance.public_address.startswith("203.0.113.")
    calls = account.cloud.ledger.calls()
    assert (calls[INSERT], calls[BULK]) == (1, 1)
    listed = await account.provider("another").list_instances(CLUSTER)
    assert {i.id for i in listed} == {i.id for some in by_role.values() for i in some}
    await account.down()


async def test_instances_accept_the_clusters_key_only(account: Account) -> None:
    account.cloud.gce.store.project_metadata["ssh-keys"] = "eve:ssh-ed25519 AAAA eve"
    (head,) = roles(await account.launch(workers=1))["head"]
    vm = account.cloud.gce.vm(head.id)
    own = (account.directory / ".ssh/shoal_ed25519.pub").read_text().strip()
    assert account.cloud.gce.store.login_keys(vm) == [("ubuntu", own)]
    assert metadata_of(vm.resource)["enable-oslogin"] == "FALSE"


async def test_three_of_five_from_one_call_are_topped_up_in_the_next_zone(
    account: Account,
) -> None:
    account.worker(min_workers=5, max_workers=5)
    account.file(max_workers=5)
    account.cloud.faults.partial_launch(3)
    workers = roles(await account.launch(workers=5))["worker"]
    assert len({i.id for i in workers}) == 5
    launched = [(zone, count) for _, _, zone, count in account.attempts("worker")]
    assert launched == [("us-west1-a", 3), ("us-west1-b", 2)]
    await account.down()


async def test_a_type_is_replaced_by_its_alternative_and_spot_by_on_demand(
    account: Account,
) -> None:
    spot = {"provisioningModel": "SPOT"}
    account.worker(node_config=node_config("n2-standard-2", scheduling=spot))
    account.file(shoal={"fallback": {"worker": ["e2-standard-2"]}, "on_demand_fallback": True})
    account.cloud.faults.refuse_capacity(market="spot")
    account.cloud.faults.refuse_capacity(type="n2-standard-2")
    workers = roles(await account.launch())["worker"]
    assert {(i.instance_type, i.market) for i in workers} == {("e2-standard-2", "on-demand")}
    tried = [(type, market) for type, market, _, _ in account.attempts("worker")]
    assert list(dict.fromkeys(tried)) == [
        ("n2-standard-2", "spot"),
        ("e2-standard-2", "spot"),
        ("n2-standard-2", "on-demand"),
        ("e2-standard-2", "on-demand"),
    ]


async def test_a_zone_without_the_machine_type_is_no_error(account: Account) -> None:
    provider = {**cluster_file()["provider"], "availability_zone": ["us-west1-c", "us-west1-b"]}
    account.file(provider=provider)
    account.worker(node_config=node_config("n2-standard-2"))
    workers = roles(await account.launch())["worker"]
    assert {i.zone for i in workers} == {"us-west1-b"}


async def test_without_a_head_nothing_is_left(account: Account) -> None:
    account.cloud.faults.refuse_capacity(type="n1-standard-4")
    types = cluster_file()["available_node_types"]
    types["head"]["node_config"] = node_config("n1-standard-4")
    account.file(available_node_types=types)
    with pytest.raises(CapacityError, match="could not launch 1 of 1 head"):
        await account.launch()
    await account.cloud.assert_nothing_left()


async def test_a_repeated_launch_finds_what_an_interrupted_one_created_in_another_zone(
    account: Account,
) -> None:
    refusal = account.cloud.faults.refuse_capacity(zone="us-west1-a")
    first = await account.launch()
    refusal.lift()
    (account.directory / "home/gcp/sim-project/refusals.json").unlink()
    again = await account.launch()
    assert {i.id for i in again} == {i.id for i in first}
    assert len(account.cloud.gce.store.vms) == 3


async def test_labels_that_change_twice_meanwhile_are_read_again(account: Account) -> None:
    (head,) = roles(await account.launch(workers=1))["head"]
    provider = account.provider()
    await provider.list_instances(CLUSTER)
    tag_status = provider.capabilities.tag_status
    assert tag_status is not None
    changed = ApiError("conditionNotMet", "Labels fingerprint either invalid or changed", 412)
    set_labels = "compute.instances.setLabels"
    account.cloud.faults.fail_call(set_labels, error=changed, times=2)
    await tag_status({head.id: "up-to-date"})
    labels = account.cloud.gce.vm(head.id).resource["labels"]
    assert labels["ray-node-status"] == "up-to-date"
    assert labels["shoal-cluster"] == CLUSTER, "the others are kept"
    assert account.cloud.ledger.calls()[set_labels] == 3


async def test_600_instances_are_listed_in_pages(account: Account) -> None:
    await account.launch(workers=1)
    store = account.cloud.gce.store
    worker = next(vm for vm in store.vms.values() if "-w" in vm.name)
    for number in range(600):
        resource = json.loads(json.dumps({**worker.resource, "name": f"more-{number}"}))
        resource["disks"] = []
        store.vms[worker.zone, f"more-{number}"] = replace(worker, resource=resource)
    before = account.cloud.ledger.calls()["compute.instances.aggregatedList"]
    listed = await account.provider("another").list_instances(CLUSTER)
    assert len({i.id for i in listed}) == 602
    assert account.cloud.ledger.calls()["compute.instances.aggregatedList"] - before == 2


async def test_an_instance_with_an_unknown_status_is_not_gone(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    await account.launch(workers=1)
    monkeypatch.setitem(gce_store._STATUSES, "running", "HIBERNATING")
    listed = await account.provider("another").list_instances(CLUSTER)
    assert [i.state for i in listed] == [State.UNREACHABLE] * 2


async def test_idle_workers_are_stopped_and_started_again_if_the_file_says_so(
    account: Account,
) -> None:
    account.file(provider={**cluster_file()["provider"], "cache_stopped_nodes": True})
    workers = roles(await account.launch())["worker"]
    head = account.provider("head-home", on_head=True)
    stop_or_terminate = head.capabilities.stop_or_terminate
    assert stop_or_terminate is not None
    await stop_or_terminate(account.spec, workers)
    states = {i.id: i.state for i in await head.list_instances(CLUSTER)}
    assert {states[i.id] for i in workers} == {State.STOPPED}
    request = LaunchRequest("worker", "worker", 3, "more")
    launched = await head.launch(account.spec, [request])
    assert {i.id for i in workers} < {i.id for i in launched}
    assert len(account.cloud.gce.store.vms) == 4
    await account.down()


async def test_a_head_launches_workers_in_its_own_network_and_creates_no_rules(
    account: Account,
) -> None:
    (head,) = roles(await account.launch(workers=1))["head"]
    rules = dict(account.cloud.gce.store.firewalls)
    provider = account.provider("head-home", on_head=True)
    (worker,) = await provider.launch(account.spec, [LaunchRequest("worker", "worker", 1, "more")])
    first, second = (account.cloud.gce.vm(i.id) for i in (head, worker))
    assert first.network == second.network
    assert account.cloud.gce.store.firewalls == rules
    keys = dict(account.cloud.gce.store.login_keys(second))
    assert keys.items() >= dict(account.cloud.gce.store.login_keys(first)).items()
    await account.down()


async def test_the_later_of_two_concurrent_ups_gives_way(account: Account) -> None:
    first = roles(await account.launch(token="first"))["head"]
    with pytest.raises(TransientError, match="another shoal up"):
        await account.provider("other").launch(
            account.spec, [LaunchRequest("head", "head", 1, "second-h")]
        )
    listed = roles(await account.provider().list_instances(CLUSTER))
    assert [i.id for i in listed["head"]] == [i.id for i in first]


async def test_an_existing_disk_is_attached_in_its_zone_and_kept(account: Account) -> None:
    store = account.cloud.gce.store
    store.add_disk("us-west1-b", "data")
    await account.cloud.gce.set_leftover_baseline()
    types = cluster_file()["available_node_types"]
    source = {"source": "zones/us-west1-b/disks/data", "autoDelete": False}
    types["head"]["node_config"]["disks"].append(source)
    account.file(available_node_types=types)
    (head,) = roles(await account.launch())["head"]
    assert head.zone == "us-west1-b"
    assert store.disks["us-west1-b", "data"]["users"]
    await account.down()
    assert store.disks["us-west1-b", "data"]["users"] == []


async def test_a_new_disk_that_the_file_retains_survives_down(account: Account) -> None:
    types = cluster_file()["available_node_types"]
    disk = {"autoDelete": False, "initializeParams": {"diskSizeGb": 10, "diskName": "results"}}
    types["head"]["node_config"]["disks"].append(disk)
    account.file(available_node_types=types)
    (head,) = roles(await account.launch())["head"]
    provider = account.provider()
    await provider.terminate(account.spec, await provider.list_instances(CLUSTER))
    assert await provider.release(account.spec)
    assert list(account.cloud.gce.store.disks) == [(head.zone, "results")]


async def test_machine_images_and_instance_templates_are_used(account: Account) -> None:
    store = account.cloud.gce.store
    golden = node_config("e2-standard-2")
    store.machine_images["golden"] = {
        **golden,
        "disks": [{**golden["disks"][0], "autoDelete": True}],
    }
    store.instance_templates["team"] = node_config("n1-standard-4", labels={"team": "a"})
    types = cluster_file()["available_node_types"]
    image = "projects/sim-project/global/machineImages/golden"
    types["head"]["node_config"] = {"sourceMachineImage": image}
    template = "projects/sim-project/global/instanceTemplates/team"
    types["worker"]["node_config"] = {"sourceInstanceTemplate": template}
    account.file(available_node_types=types)
    by_role = roles(await account.launch())
    assert [i.instance_type for i in by_role["head"]] == ["e2-standard-2"]
    assert {i.instance_type for i in by_role["worker"]} == {"n1-standard-4"}
    worker = account.cloud.gce.vm(by_role["worker"][0].id)
    assert worker.resource["labels"]["team"] == "a"
    await account.down()


async def test_rules_for_the_tags_of_the_file_are_used_and_none_is_created(
    account: Account,
) -> None:
    common = {"network": "global/networks/default", "targetTags": ["ray"]}
    store = account.cloud.gce.store
    for name, rule in {
        "team-ssh": {
            "sourceRanges": ["0.0.0.0/0"],
            "allowed": [{"IPProtocol": "tcp", "ports": ["22"]}],
        },
        "team-internal": {"sourceTags": ["ray"], "allowed": [{"IPProtocol": "all"}]},
    }.items():
        store.firewalls[name] = {**common, **rule, "name": name}
    await account.cloud.gce.set_leftover_baseline()
    types = cluster_file()["available_node_types"]
    for node_type in types.values():
        node_type["node_config"]["tags"] = {"items": ["ray"]}
    account.file(available_node_types=types)
    await account.launch()
    assert set(store.firewalls) == {"team-ssh", "team-internal"}
    await account.down()
    assert set(store.firewalls) == {"team-ssh", "team-internal"}


async def test_a_caller_who_may_not_create_rules_gets_the_commands_for_an_administrator(
    account: Account,
) -> None:
    account.cloud.gce.denied.add("compute.firewalls.create")
    with pytest.raises(DeniedError) as caught:
        await account.launch()
    commands = [line for line in caught.value.fix.splitlines() if line.startswith("gcloud")]
    assert [command.split()[4] for command in commands] == [
        "shoal-mine-internal",
        f"shoal-mine-ssh-{this_machine()}",
    ]
    store = account.cloud.gce.store
    for command in commands:  # the administrator runs them
        options = dict(zip(command.split()[5::2], command.split()[6::2], strict=True))
        protocol, _, port = options["--allow"].partition(":")
        allowed = {"IPProtocol": protocol, **({"ports": [port]} if port else {})}
        name = command.split()[4]
        store.firewalls[name] = {
            "name": name,
            "network": f"global/networks/{options['--network']}",
            "targetTags": [options["--target-tags"]],
            "sourceRanges": options.get("--source-ranges", "").split(",")[: "ssh" in name],
            "sourceTags": [options["--source-tags"]] if "--source-tags" in options else [],
            "allowed": [allowed],
        }
    await account.launch()
    await account.cloud.gce.set_leftover_baseline()
    provider = account.provider("another")
    await provider.terminate(account.spec, await provider.list_instances(CLUSTER))
    await provider.release(account.spec)
    assert len(store.firewalls) == 2, "they are not Shoal's"


async def test_two_machines_with_other_addresses_share_a_cluster(account: Account) -> None:
    await account.launch(workers=1)
    gcp = GcpClient(gce_store.PROJECT, SystemClock())
    changed = await firewall.allow_ssh_from(gcp, CLUSTER, ["192.0.2.9/32"], "colleague")
    assert changed == ["shoal-mine-ssh-colleague"]
    assert await firewall.allow_ssh_from(gcp, CLUSTER, ["192.0.2.9/32"], "colleague") == []
    allowed = [
        source
        for rule in account.cloud.gce.store.firewalls.values()
        for source in rule.get("sourceRanges") or ()
    ]
    assert len(allowed) == 2, "the first machine keeps its access"
    await firewall.allow_ssh_from(gcp, CLUSTER, ["192.0.2.10/32"], "colleague")
    assert len(account.cloud.gce.store.firewalls) == 3, "the address of a machine is replaced"
    await account.down()


@pytest.mark.skipif(not EXAMPLES.exists(), reason="the example files are not available")
@pytest.mark.parametrize("name", ["defaults", "example-full", "example-minimal"])
async def test_the_instances_of_rays_examples_are_launched_and_deleted(
    account: Account, name: str
) -> None:
    data = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    data["provider"]["project_id"] = gce_store.PROJECT
    file = account.directory / "example.yaml"
    file.write_text(json.dumps(data))
    spec = load(str(file)).launchable()
    provider = provider_for(spec, account.directory / "home", SystemClock())
    launches = plan_up(spec, ObservedCluster()).launches
    created = await provider.launch(spec, launches)
    assert len(created) == sum(launch.count for launch in launches)
    await provider.terminate(spec, created)
    await provider.release(spec)
    await account.cloud.assert_nothing_left()
