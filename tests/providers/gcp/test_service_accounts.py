"""The service account of a cluster: created step by step, limited to its own instances, deleted."""

from __future__ import annotations

import pytest

from shoal.core.clock import SystemClock
from shoal.core.errors import DeniedError
from shoal.providers.gcp import iam_permissions, names, service_accounts
from shoal.providers.gcp.gcp_client import GcpClient
from tests.simcloud.calls import ApiError
from tests.simcloud.cloud import SimCloud
from tests.simcloud.gce_store import PROJECT

DELETE = "compute.instances.delete"


@pytest.fixture
def gcp(cloud: SimCloud) -> GcpClient:
    return GcpClient(PROJECT, SystemClock())


def instance(name: str) -> str:
    return f"projects/{PROJECT}/zones/us-west1-a/instances/{name}"


@pytest.mark.simcloud
async def test_the_account_may_use_instances_of_its_own_cluster_only(
    cloud: SimCloud, gcp: GcpClient
) -> None:
    email = await service_accounts.ensure_account(gcp, "train")
    (own,) = names.instance_names("train", "t", "worker", 1)
    (other,) = names.instance_names("train-2", "t", "worker", 1)
    iam = cloud.gce.iam
    assert iam.grants(email, DELETE, instance(own))
    assert iam.grants(email, "compute.instances.create", instance(own))
    assert not iam.grants(email, DELETE, instance(other))
    assert not iam.grants(email, DELETE, instance("somebody-elses"))
    assert iam.grants(email, "compute.instances.list", f"projects/{PROJECT}")
    assert not iam.grants(email, "compute.firewalls.create", f"projects/{PROJECT}")
    assert not iam.grants(email, "iam.serviceAccounts.create", f"projects/{PROJECT}")


@pytest.mark.simcloud
async def test_a_complete_account_costs_one_call(cloud: SimCloud, gcp: GcpClient) -> None:
    await service_accounts.ensure_account(gcp, "train")
    before = cloud.ledger.calls()
    await service_accounts.ensure_account(gcp, "train")
    assert (cloud.ledger.calls() - before).total() == 1


@pytest.mark.simcloud
@pytest.mark.parametrize(
    "call",
    [
        "iam.serviceAccounts.create",
        "iam.roles.create",
        "iam.serviceAccounts.setIamPolicy",
        "cloudresourcemanager.projects.setIamPolicy",
    ],
)
async def test_a_repeated_up_completes_an_account_that_was_begun(
    cloud: SimCloud, gcp: GcpClient, call: str
) -> None:
    broken = ApiError("FAILED_PRECONDITION", "not now", 400)
    fault = cloud.faults.fail_call(call, error=broken, times=9)
    with pytest.raises(Exception, match="not now"):
        await service_accounts.ensure_account(gcp, "train")
    fault.lift()
    email = await service_accounts.ensure_account(gcp, "train")
    (own,) = names.instance_names("train", "t", "worker", 1)
    assert cloud.gce.iam.grants(email, DELETE, instance(own))
    assert await service_accounts.delete_account(gcp, "train") == [f"service account {email}"]
    await cloud.assert_nothing_left()


@pytest.mark.simcloud
async def test_changes_of_others_to_the_policy_are_kept(cloud: SimCloud, gcp: GcpClient) -> None:
    theirs = {"role": "roles/viewer", "members": ["user:ana@example.com"]}
    cloud.gce.iam.policy["bindings"].append(theirs)
    changed = ApiError("ABORTED", "There were concurrent policy changes.", 409)
    cloud.faults.fail_call("cloudresourcemanager.projects.setIamPolicy", error=changed, times=2)
    await service_accounts.ensure_account(gcp, "train")
    assert cloud.ledger.calls()["cloudresourcemanager.projects.getIamPolicy"] == 4
    await service_accounts.delete_account(gcp, "train")
    assert cloud.gce.iam.policy["bindings"] == [theirs]


@pytest.mark.simcloud
async def test_a_role_of_an_earlier_version_gets_what_it_lacks(
    cloud: SimCloud, gcp: GcpClient
) -> None:
    await service_accounts.ensure_account(gcp, "old")
    role = cloud.gce.iam.roles[iam_permissions.CLUSTER_ROLE]
    role["includedPermissions"] = ["compute.instances.list"]
    role["deleted"] = True
    await service_accounts.ensure_account(gcp, "new")
    role = cloud.gce.iam.roles[iam_permissions.CLUSTER_ROLE]
    assert DELETE in role["includedPermissions"]
    assert not role.get("deleted")


@pytest.mark.simcloud
async def test_who_may_not_create_an_account_learns_how_to_name_one(
    cloud: SimCloud, gcp: GcpClient
) -> None:
    cloud.gce.denied.add("iam.serviceAccounts.create")
    with pytest.raises(DeniedError) as caught:
        await service_accounts.ensure_account(gcp, "train")
    assert "provider: {service_account: " in caught.value.fix


@pytest.mark.simcloud
async def test_only_the_account_that_was_created_is_deleted(
    cloud: SimCloud, gcp: GcpClient
) -> None:
    body = {"accountId": names.account_id("train"), "serviceAccount": {"description": "mine"}}
    await gcp.call("iam", "POST", "/serviceAccounts", body)
    assert await service_accounts.delete_account(gcp, "train") == []
    assert len(cloud.gce.iam.accounts) == 1
    cloud.gce.denied.add("iam.serviceAccounts.get")
    assert await service_accounts.delete_account(gcp, "train") == []


def test_ids_fit_the_limits_of_google_for_any_cluster() -> None:
    long = [f"experiment-with-a-very-long-name-{end}" for end in ("one", "two")]
    ids = [names.account_id(name) for name in ("x", "My_Run.1", *long)]
    assert all(6 <= len(id) <= 30 for id in ids), ids
    assert len(set(ids)) == len(ids)
    email = service_accounts.email_for("example.com:lab", "x")
    assert email == "shoal-x@lab.example.com.iam.gserviceaccount.com"


def test_the_prefix_of_a_cluster_begins_no_name_of_another() -> None:
    clusters = ["a", "a-b", "a--b", "a-", "A", "a.b", "a_b", "a--w"]
    for cluster in clusters:
        for other in clusters:
            (name,) = names.instance_names(other, "t", "worker", 1)
            begins = name.startswith(names.instance_prefix(cluster))
            assert begins == (cluster == other), (cluster, other)
