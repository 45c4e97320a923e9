"""The account-wide listing, and `gc`, which deletes orphans."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import boto3
import pytest

from shoal.core.clock import SystemClock
from shoal.core.errors import AuthError
from shoal.core.events import PlanStep, ResourcesDeleted, Warned
from shoal.ops.cloud_account import ClusterListing, collect_garbage, list_clusters
from shoal.ops.context import Confirm, Context, Severity, always_yes
from shoal.providers.aws.pricing import catalog_price
from tests.providers.aws.aws_bed import CLUSTER, Bed, cluster_file
from tests.providers.aws.provider_account import Account
from tests.simcloud import aws_market
from tests.simcloud.calls import ApiError
from tests.simcloud.cloud import SimCloud
from tests.simcloud.faults import Fault

pytestmark = pytest.mark.simcloud

LEFT = {"shoal_cluster": "left", "ray_cluster_name": "left"}


class Later(SystemClock):
    """An hour ahead, so that nothing counts as new."""

    def now(self) -> float:
        return super().now() + 3600


def client(cloud: SimCloud, service: str = "ec2", region: str = "us-west-2") -> Any:
    return boto3.client(service, **{**cloud.ec2.client_options(), "region_name": region})


def labels(**tags: str) -> list[dict[str, str]]:
    return [{"Key": key.replace("_", "-"), "Value": value} for key, value in tags.items()]


def launch(cloud: SimCloud, region: str = "us-west-2", **tags: str) -> str:
    """An instance launched without Shoal."""
    response = client(cloud, region=region).run_instances(
        ImageId="ami-12345678",
        InstanceType="m5.large",
        MinCount=1,
        MaxCount=1,
        TagSpecifications=[{"ResourceType": "instance", "Tags": labels(**tags)}],
    )
    return str(response["Instances"][0]["InstanceId"])


def create_orphaned_group(cloud: SimCloud) -> str:
    """Create the security group of a cluster without instances."""
    created = client(cloud).create_security_group(
        GroupName="shoal-left",
        Description="left",
        TagSpecifications=[
            {"ResourceType": "security-group", "Tags": labels(shoal_cluster="left")}
        ],
    )
    return str(created["GroupId"])


def groups(cloud: SimCloud) -> set[str]:
    return {g["GroupId"] for g in client(cloud).describe_security_groups()["SecurityGroups"]}


def running(cloud: SimCloud) -> set[str]:
    return {rental.id for rental in cloud.ledger.running()}


def context(account: Account, confirm: Confirm = always_yes, *, later: bool = True) -> Context:
    clock = Later() if later else SystemClock()
    return Context(account.events.append, confirm, account.directory / "home", clock)


async def listings(account: Account) -> dict[str, ClusterListing]:
    return {entry.cluster: entry for entry in await list_clusters(context(account))}


def warnings(account: Account) -> list[str]:
    return [f"{e.what}: {e.why}" for e in account.events if isinstance(e, Warned)]


async def test_clusters_are_listed_and_gc_skips_new_ones(bed: Bed) -> None:
    await bed.up()
    rays = launch(bed.cloud, ray_cluster_name="rays", ray_node_type="head")
    lost = launch(bed.cloud, ray_cluster_name="lost", ray_node_type="worker")
    done = await bed.shoal("ls --all-regions --json")
    assert done.code == 0, done.stderr
    clusters = {entry["cluster"]: entry for entry in json.loads(done.stdout)}
    assert (clusters["mine"]["nodes"], clusters["mine"]["state"]) == (3, "up")
    assert clusters["mine"]["price_per_hour"] > 0
    assert (clusters["rays"]["made_by"], clusters["rays"]["state"]) == ("ray", "up")
    assert clusters["lost"]["state"] == "no head yet"

    done = await bed.shoal("gc --yes")
    assert done.code == 0, done.stderr
    assert "lost in us-west-2 is not deleted" in done.stderr
    assert "nothing to delete" in done.stderr
    client(bed.cloud).terminate_instances(InstanceIds=[rays, lost])
    await bed.down()


def never(question: str, severity: Severity = Severity.NORMAL) -> bool:
    return False


async def test_gc_deletes_only_orphans_and_only_after_confirmation(account: Account) -> None:
    cloud = account.cloud
    rays = launch(cloud, ray_cluster_name="rays", ray_node_type="head")
    lost = launch(cloud, ray_cluster_name="lost", ray_node_type="worker")
    left = create_orphaned_group(cloud)
    clusters = await listings(account)
    assert clusters["lost"].state == "no head; shoal gc"
    assert clusters["left"].others == ("security group shoal-left",)

    assert not await collect_garbage(context(account, never))
    steps = [e.subject for e in account.events if isinstance(e, PlanStep)]
    assert sorted(steps) == sorted([f"instance {lost}", "security group shoal-left"])
    assert lost in running(cloud)

    assert await collect_garbage(context(account))
    assert running(cloud) == {rays}
    assert left not in groups(cloud)
    assert set(await listings(account)) == {"rays"}
    assert await collect_garbage(context(account))
    assert account.events[-1] == ResourcesDeleted(())


async def test_gc_skips_a_cluster_that_came_up_during_the_confirmation(
    account: Account,
) -> None:
    cloud = account.cloud
    left = create_orphaned_group(cloud)
    worker = launch(cloud, **LEFT, ray_node_type="worker")
    heads: list[str] = []

    def confirm(question: str, severity: Severity = Severity.NORMAL) -> bool:
        heads.append(launch(cloud, **LEFT, ray_node_type="head"))
        return True

    assert await collect_garbage(context(account, confirm))
    assert running(cloud) == {worker, *heads}
    assert left in groups(cloud)
    assert "left in us-west-2 is not deleted: it has a head again" in warnings(account)


async def test_gc_stops_when_a_head_appears_during_deletion(account: Account) -> None:
    """EC2 refuses to delete the group before a listing shows the instance that uses it."""
    cloud = account.cloud
    create_orphaned_group(cloud)
    pair = {"ResourceType": "key-pair", "Tags": labels(shoal_cluster="left")}
    client(cloud).create_key_pair(KeyName="shoal-left", TagSpecifications=[pair])
    heads: list[str] = []

    loop = asyncio.get_running_loop()  # the simulated cloud runs in its own thread

    async def launch_head(_: Any) -> None:
        launching = asyncio.to_thread(launch, cloud, **LEFT, ray_node_type="head")
        heads.append(await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(launching, loop)))

    in_use = ApiError("DependencyViolation", "resource has a dependent object")

    def is_deletion(call: Any, _: Any) -> bool:
        return bool(call.action == "DeleteSecurityGroup")

    cloud.faults.add(Fault(is_deletion, in_use, times=1, do=launch_head))
    assert await collect_garbage(context(account))
    assert running(cloud) == set(heads)
    assert [k["KeyName"] for k in client(cloud).describe_key_pairs()["KeyPairs"]] == ["shoal-left"]
    assert "left in us-west-2 is not deleted: it has a head again" in warnings(account)


async def test_gc_skips_resources_that_an_up_has_just_created(account: Account) -> None:
    """Its key pair exists, its instances do not yet."""
    pair = {"ResourceType": "key-pair", "Tags": labels(shoal_cluster=CLUSTER)}
    client(account.cloud).create_key_pair(KeyName="shoal-mine", TagSpecifications=[pair])
    assert await collect_garbage(context(account, later=False))
    assert account.events[-1] == ResourcesDeleted(())
    assert any("mine in us-west-2 is not deleted" in warning for warning in warnings(account))
    assert await collect_garbage(context(account))
    assert not client(account.cloud).describe_key_pairs()["KeyPairs"]


async def test_prices_missing_in_the_catalog_are_requested_or_reported_as_unknown(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aws_market, "REGIONS", ("us-west-2", "eu-west-3"))
    launch(account.cloud, "eu-west-3", ray_cluster_name="far", ray_node_type="head")
    assert catalog_price("eu-west-3", "m5.large", "on-demand") is None
    far = (await listings(account))["far"]
    assert (far.price_per_hour, far.complete) == (0.096, True)
    denied = ApiError("AccessDeniedException", "you may not", 403)
    account.cloud.faults.fail_call("GetProducts", error=denied, times=99)
    account.directory = account.directory / "another"
    far = (await listings(account))["far"]
    assert (far.price_per_hour, far.complete) == (0.0, False)


async def test_retained_volumes_are_reported_and_never_deleted(account: Account) -> None:
    account.file(shoal={"volumes": {"/data": {"size": 500, "keep": True}}})
    await account.launch(workers=1)
    provider = account.provider()
    await provider.terminate(account.spec, await provider.list_instances(CLUSTER))
    await provider.release(account.spec)
    ours = [{"Name": "tag-key", "Values": ["shoal-cluster"]}]
    volumes = client(account.cloud).describe_volumes(Filters=ours)["Volumes"]
    sizes = [volume["Size"] for volume in volumes]
    assert sizes == [500, 500], "the root volumes were deleted"
    left = client(account.cloud).create_volume(
        AvailabilityZone="us-west-2a",
        Size=8,
        TagSpecifications=[{"ResourceType": "volume", "Tags": labels(shoal_cluster=CLUSTER)}],
    )["VolumeId"]

    assert await collect_garbage(context(account))
    assert account.events[-1] == ResourcesDeleted((f"volume {left}",))
    assert client(account.cloud).describe_volumes(Filters=ours)["Volumes"] == volumes
    reported = [e for e in account.events if isinstance(e, Warned) and "is kept" in e.what]
    assert len(reported) == 2
    assert "500 GiB, about $40.00/month" in reported[0].what
    assert reported[0].fix.startswith("aws ec2 delete-volume --region us-west-2 --volume-id vol-")
    mine = (await listings(account))[CLUSTER]
    assert (mine.state, len(mine.kept), mine.others) == ("volumes kept", 2, ())


def deny(cloud: SimCloud, strikes: Callable[[Any], bool]) -> None:
    """Deny some calls."""
    denied = ApiError("AccessDenied", "is not authorized to perform this", 403)
    cloud.faults.add(Fault(lambda call, _: strikes(call), denied))


async def test_listing_and_gc_work_without_iam_permissions(account: Account) -> None:
    left = create_orphaned_group(account.cloud)
    deny(account.cloud, lambda call: call.service == "iam")
    assert (await listings(account))["left"].nodes == 0
    assert any("could not list instance profiles" in warning for warning in warnings(account))
    assert await collect_garbage(context(account))
    assert left not in groups(account.cloud)
    assert any("may still exist" in warning for warning in warnings(account))


async def test_a_denied_region_does_not_hide_the_others(account: Account) -> None:
    create_orphaned_group(account.cloud)
    deny(account.cloud, lambda call: call.region == "eu-central-1" and call.service == "ec2")
    assert set(await listings(account)) == {"left"}
    assert any("could not list eu-central-1" in warning for warning in warnings(account))


async def test_invalid_credentials_raise_an_error_instead_of_an_empty_listing(
    account: Account,
) -> None:
    expired = ApiError("RequestExpired", "Request has expired.")
    account.cloud.faults.fail_call("DescribeSecurityGroups", error=expired, times=99)
    with pytest.raises(AuthError):
        await list_clusters(context(account))


async def test_down_needs_no_iam_permissions_if_the_file_names_the_heads_profile(
    account: Account,
) -> None:
    """Users of a shared account often have no IAM permissions."""
    iam = client(account.cloud, "iam")
    iam.create_instance_profile(InstanceProfileName="theirs")
    await account.cloud.ec2.set_leftover_baseline()
    types = cluster_file()["available_node_types"]
    types["head"]["node_config"]["IamInstanceProfile"] = {"Name": "theirs"}
    account.file(available_node_types=types)
    await account.launch(workers=1)
    deny(account.cloud, lambda call: call.service == "iam")
    await account.down()
    assert not warnings(account)
