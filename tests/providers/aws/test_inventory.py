"""Everything that a person owns in an account: listed, and what was left behind removed."""

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
from shoal.ops.account import ClusterListing, collect_garbage, list_clusters
from shoal.ops.context import Context
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
    """An hour ahead: what was made a moment ago is no longer new."""

    def now(self) -> float:
        return super().now() + 3600


def client(cloud: SimCloud, service: str = "ec2", region: str = "us-west-2") -> Any:
    return boto3.client(service, **{**cloud.ec2.client_options(), "region_name": region})


def labels(**tags: str) -> list[dict[str, str]]:
    return [{"Key": key.replace("_", "-"), "Value": value} for key, value in tags.items()]


def launch(cloud: SimCloud, region: str = "us-west-2", **tags: str) -> str:
    """A machine that somebody else's tools made."""
    answer = client(cloud, region=region).run_instances(
        ImageId="ami-12345678",
        InstanceType="m5.large",
        MinCount=1,
        MaxCount=1,
        TagSpecifications=[{"ResourceType": "instance", "Tags": labels(**tags)}],
    )
    return str(answer["Instances"][0]["InstanceId"])


def leave_group(cloud: SimCloud) -> str:
    """A security group of a cluster that has no machine."""
    made = client(cloud).create_security_group(
        GroupName="shoal-left",
        Description="left",
        TagSpecifications=[
            {"ResourceType": "security-group", "Tags": labels(shoal_cluster="left")}
        ],
    )
    return str(made["GroupId"])


def groups(cloud: SimCloud) -> set[str]:
    return {g["GroupId"] for g in client(cloud).describe_security_groups()["SecurityGroups"]}


def running(cloud: SimCloud) -> set[str]:
    return {rental.id for rental in cloud.ledger.running()}


def context(
    account: Account, confirm: Callable[[str], bool] = lambda question: True, *, later: bool = True
) -> Context:
    clock = Later() if later else SystemClock()
    return Context(account.events.append, confirm, account.directory / "home", clock)


async def owned(account: Account) -> dict[str, ClusterListing]:
    return {one.cluster: one for one in await list_clusters(context(account))}


def warnings(account: Account) -> list[str]:
    return [f"{e.what}: {e.why}" for e in account.events if isinstance(e, Warned)]


async def test_clusters_are_listed_and_what_is_new_is_left_alone(bed: Bed) -> None:
    await bed.up()
    rays = launch(bed.cloud, ray_cluster_name="rays", ray_node_type="head")
    lost = launch(bed.cloud, ray_cluster_name="lost", ray_node_type="worker")
    done = await bed.shoal("ls --all-regions --json")
    assert done.code == 0, done.stderr
    found = {entry["cluster"]: entry for entry in json.loads(done.stdout)}
    assert (found["mine"]["nodes"], found["mine"]["state"]) == (3, "up")
    assert found["mine"]["price_per_hour"] > 0
    assert (found["rays"]["made_by"], found["rays"]["state"]) == ("ray", "up")
    assert found["lost"]["state"] == "no head yet"

    done = await bed.shoal("gc --yes")
    assert done.code == 0, done.stderr
    assert "lost in us-west-2 is not deleted" in done.stderr
    assert "nothing to delete" in done.stderr
    client(bed.cloud).terminate_instances(InstanceIds=[rays, lost])
    await bed.down()


async def test_only_what_nobody_leads_is_removed_and_only_after_a_yes(account: Account) -> None:
    cloud = account.cloud
    rays = launch(cloud, ray_cluster_name="rays", ray_node_type="head")
    lost = launch(cloud, ray_cluster_name="lost", ray_node_type="worker")
    left = leave_group(cloud)
    found = await owned(account)
    assert found["lost"].state == "no head; shoal gc"
    assert found["left"].others == ("security group shoal-left",)

    assert not await collect_garbage(context(account, lambda question: False))
    steps = [e.subject for e in account.events if isinstance(e, PlanStep)]
    assert sorted(steps) == sorted([f"instance {lost}", "security group shoal-left"])
    assert lost in running(cloud)

    assert await collect_garbage(context(account))
    assert running(cloud) == {rays}
    assert left not in groups(cloud)
    assert set(await owned(account)) == {"rays"}
    assert await collect_garbage(context(account))
    assert account.events[-1] == ResourcesDeleted(())


async def test_a_cluster_that_came_up_while_the_person_thought_is_left_alone(
    account: Account,
) -> None:
    cloud = account.cloud
    left = leave_group(cloud)
    worker = launch(cloud, **LEFT, ray_node_type="worker")
    heads: list[str] = []

    def thinks(question: str) -> bool:
        heads.append(launch(cloud, **LEFT, ray_node_type="head"))
        return True

    assert await collect_garbage(context(account, thinks))
    assert running(cloud) == {worker, *heads}
    assert left in groups(cloud)
    assert "left in us-west-2 is not deleted: it has a head again" in warnings(account)


async def test_a_head_that_comes_during_the_removal_ends_it(account: Account) -> None:
    """AWS refuses the group to us before any listing shows whose machine uses it."""
    cloud = account.cloud
    leave_group(cloud)
    pair = {"ResourceType": "key-pair", "Tags": labels(shoal_cluster="left")}
    client(cloud).create_key_pair(KeyName="shoal-left", TagSpecifications=[pair])
    heads: list[str] = []

    here = asyncio.get_running_loop()  # the cloud has a thread and a network of its own

    async def comes_up(_: Any) -> None:
        launching = asyncio.to_thread(launch, cloud, **LEFT, ray_node_type="head")
        heads.append(await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(launching, here)))

    in_use = ApiError("DependencyViolation", "resource has a dependent object")

    def is_removal(call: Any, _: Any) -> bool:
        return bool(call.action == "DeleteSecurityGroup")

    cloud.faults.add(Fault(is_removal, in_use, times=1, do=comes_up))
    assert await collect_garbage(context(account))
    assert running(cloud) == set(heads)
    assert [k["KeyName"] for k in client(cloud).describe_key_pairs()["KeyPairs"]] == ["shoal-left"]
    assert "left in us-west-2 is not deleted: it has a head again" in warnings(account)


async def test_what_an_up_has_just_made_is_no_leftover(account: Account) -> None:
    """Its key is there, and its machines are not yet."""
    pair = {"ResourceType": "key-pair", "Tags": labels(shoal_cluster=CLUSTER)}
    client(account.cloud).create_key_pair(KeyName="shoal-mine", TagSpecifications=[pair])
    assert await collect_garbage(context(account, later=False))
    assert account.events[-1] == ResourcesDeleted(())
    assert any("mine in us-west-2 is not deleted" in words for words in warnings(account))
    assert await collect_garbage(context(account))
    assert not client(account.cloud).describe_key_pairs()["KeyPairs"]


async def test_prices_are_asked_for_where_no_catalog_has_them_and_else_said_to_be_missing(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aws_market, "REGIONS", ("us-west-2", "eu-west-3"))
    launch(account.cloud, "eu-west-3", ray_cluster_name="far", ray_node_type="head")
    assert catalog_price("eu-west-3", "m5.large", "on-demand") is None
    far = (await owned(account))["far"]
    assert (far.price_per_hour, far.complete) == (0.096, True)
    denied = ApiError("AccessDeniedException", "you may not", 403)
    account.cloud.faults.fail_call("GetProducts", error=denied, times=99)
    account.directory = account.directory / "another"
    far = (await owned(account))["far"]
    assert (far.price_per_hour, far.complete) == (0.0, False)


async def test_volumes_that_the_file_keeps_are_told_of_and_never_removed(account: Account) -> None:
    account.file(shoal={"volumes": {"/data": {"size": 500, "keep": True}}})
    await account.launch(workers=1)
    provider = account.provider()
    await provider.terminate(account.spec, await provider.list_instances(CLUSTER))
    await provider.release(account.spec)
    ours = [{"Name": "tag-key", "Values": ["shoal-cluster"]}]
    found = client(account.cloud).describe_volumes(Filters=ours)["Volumes"]
    sizes = [volume["Size"] for volume in found]
    assert sizes == [500, 500], "the roots went with their machines"
    left = client(account.cloud).create_volume(
        AvailabilityZone="us-west-2a",
        Size=8,
        TagSpecifications=[{"ResourceType": "volume", "Tags": labels(shoal_cluster=CLUSTER)}],
    )["VolumeId"]

    assert await collect_garbage(context(account))
    assert account.events[-1] == ResourcesDeleted((f"volume {left}",))
    assert client(account.cloud).describe_volumes(Filters=ours)["Volumes"] == found
    told = [e for e in account.events if isinstance(e, Warned) and "is kept" in e.what]
    assert len(told) == 2
    assert "500 GiB, about $40.00/month" in told[0].what
    assert told[0].fix.startswith("aws ec2 delete-volume --region us-west-2 --volume-id vol-")
    mine = (await owned(account))[CLUSTER]
    assert (mine.state, len(mine.kept), mine.others) == ("volumes kept", 2, ())


def deny(cloud: SimCloud, strikes: Callable[[Any], bool]) -> None:
    """Have an administrator who lets people do only part of it."""
    denied = ApiError("AccessDenied", "is not authorized to perform this", 403)
    cloud.faults.add(Fault(lambda call, _: strikes(call), denied))


async def test_who_may_not_use_iam_sees_the_rest_and_may_tidy_it(account: Account) -> None:
    left = leave_group(account.cloud)
    deny(account.cloud, lambda call: call.service == "iam")
    assert (await owned(account))["left"].nodes == 0
    assert any("could not list instance profiles" in words for words in warnings(account))
    assert await collect_garbage(context(account))
    assert left not in groups(account.cloud)
    assert any("may still exist" in words for words in warnings(account))


async def test_a_region_that_is_closed_to_us_does_not_hide_the_others(account: Account) -> None:
    leave_group(account.cloud)
    deny(account.cloud, lambda call: call.region == "eu-central-1" and call.service == "ec2")
    assert set(await owned(account)) == {"left"}
    assert any("could not list eu-central-1" in words for words in warnings(account))


async def test_without_good_credentials_nothing_is_said_to_be_all(account: Account) -> None:
    expired = ApiError("RequestExpired", "Request has expired.")
    account.cloud.faults.fail_call("DescribeSecurityGroups", error=expired, times=99)
    with pytest.raises(AuthError):
        await list_clusters(context(account))


async def test_a_cluster_whose_file_names_its_profile_goes_without_a_word_to_iam(
    account: Account,
) -> None:
    """Who works with what others have made for them may often not use IAM at all."""
    iam = client(account.cloud, "iam")
    iam.create_instance_profile(InstanceProfileName="theirs")
    await account.cloud.ec2.disown_what_is_there()
    types = cluster_file()["available_node_types"]
    types["head"]["node_config"]["IamInstanceProfile"] = {"Name": "theirs"}
    account.file(available_node_types=types)
    await account.launch(workers=1)
    deny(account.cloud, lambda call: call.service == "iam")
    await account.end()
    assert not warnings(account)
