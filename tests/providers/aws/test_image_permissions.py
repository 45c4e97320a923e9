"""Baked images with the permissions of the head's role, which may delete those of its own cluster:
an image whose content is not certain must not stay."""

from __future__ import annotations

from typing import Any, cast

import boto3
import pytest

from shoal.core.errors import DeniedError, TransientError
from shoal.providers.aws import baked_images, iam_policies, iam_roles
from shoal.providers.aws.aws_client import AwsClient
from shoal.providers.aws.baked_images import BakedImages, image_key
from shoal.providers.aws.instances import describe_records
from shoal.providers.model import Instance, LaunchRequest
from shoal.providers.vm.first_ssh_contact import FirstContactRunner
from shoal.remote.runner import Completed
from tests.providers.aws.aws_bed import cluster_file
from tests.providers.aws.manual_clock import ManualClock
from tests.providers.aws.provider_account import Account
from tests.simcloud.calls import ApiError
from tests.simcloud.ec2 import ACCESS_KEY
from tests.simcloud.faults import Fault

pytestmark = pytest.mark.simcloud


class NoHost:
    """The runner of an instance that never boots: nothing here depends on its disk."""

    async def run(self, command: str, **options: Any) -> Completed:
        return Completed(0)

    async def replace_host_key(self) -> None:
        pass


def no_host(instance: Instance) -> FirstContactRunner:
    return cast("FirstContactRunner", NoHost())


def use_role_of_head(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the calls of the test with the permissions of the head."""
    role = iam_roles.head_profile_name("mine", "us-west-2")
    key = account.cloud.ec2.metadata.credentials(role)["AccessKeyId"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)


@pytest.fixture
async def head(account: Account, monkeypatch: pytest.MonkeyPatch) -> Instance:
    """A head that never boots, and whose role the calls of the test have from now on."""
    account.file(shoal={"bake": True})
    account.cloud.ec2.boot_delay(3600)
    (head,) = await account.launch(workers=0)
    use_role_of_head(account, monkeypatch)
    return head


@pytest.fixture
def images(monkeypatch: pytest.MonkeyPatch) -> BakedImages:
    monkeypatch.setattr(baked_images, "_SNAPSHOT_SECONDS", 3.0)  # in few calls
    return BakedImages(AwsClient("us-west-2", ManualClock()), no_host)


async def kinds_left(account: Account) -> set[str]:
    kinds = {thing.kind for thing in await account.cloud.ec2.leftovers()}
    return kinds & {"image", "snapshot"}


async def test_an_image_whose_snapshots_do_not_begin_is_deleted(
    account: Account, head: Instance, images: BakedImages
) -> None:
    account.cloud.ec2.snapshot_delay_s = 3600
    with pytest.raises(TransientError, match="did not begin the snapshots"):
        await images.bake(account.spec, head, "hash", "{}")
    assert await kinds_left(account) == set()


async def test_an_image_is_deleted_when_it_is_not_known_whether_its_snapshots_have_begun(
    account: Account, head: Instance, images: BakedImages
) -> None:
    account.cloud.ec2.snapshot_delay_s = 3600
    denied = ApiError("UnauthorizedOperation", "You are not authorized", 403)
    # The first listing looks for images that exist.
    account.cloud.faults.fail_call("DescribeImages", error=denied, nth=2)
    with pytest.raises(DeniedError):
        await images.bake(account.spec, head, "hash", "{}")
    assert await kinds_left(account) == set()


async def test_an_attempt_after_a_killed_one_waits_for_the_snapshots_of_its_image(
    account: Account, head: Instance, images: BakedImages
) -> None:
    account.cloud.ec2.snapshot_delay_s = 3600
    (record,) = await describe_records(images.aws, [head.id])
    key = image_key(record["ImageId"], "hash")
    first = await images._create(account.spec, head, record, key, "hash")
    with pytest.raises(TransientError, match=f"did not begin the snapshots of {first}"):
        await images.bake(account.spec, head, "hash", "{}")
    assert await kinds_left(account) == set()


async def test_down_deletes_a_snapshot_that_begins_after_its_image_is_gone(
    account: Account, head: Instance, images: BakedImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = await images.bake(account.spec, head, "hash", "{}")
    assert image
    await images.store.deregister(image)
    assert await kinds_left(account) == {"snapshot"}
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    await account.down()


async def test_the_head_may_not_delete_images_of_others(
    account: Account, head: Instance, images: BakedImages
) -> None:
    ec2 = boto3.client("ec2", **account.cloud.ec2.client_options())
    image = ec2.create_image(InstanceId=head.id, Name="my own")["ImageId"]
    with pytest.raises(DeniedError):
        await images.store.deregister(image)


async def test_a_head_may_bake_once_the_file_asks_for_it(
    account: Account, images: BakedImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    account.cloud.ec2.boot_delay(3600)
    (head,) = await account.launch(workers=0)
    account.file(shoal={"bake": True})
    await account.provider().launch(account.spec, [LaunchRequest("worker", "worker", 1, "more")])
    use_role_of_head(account, monkeypatch)
    assert await images.bake(account.spec, head, "hash", "{}")


async def test_baking_needs_no_iam_permissions_if_the_file_names_the_heads_role(
    account: Account,
) -> None:
    """They would be needed to let the head bake; `up` does it for the nodes that it launches."""
    iam = boto3.client("iam", **account.cloud.ec2.client_options())
    iam.create_instance_profile(InstanceProfileName="theirs")
    types = cluster_file()["available_node_types"]
    types["head"]["node_config"]["IamInstanceProfile"] = {"Name": "theirs"}
    account.file(available_node_types=types, shoal={"bake": True})
    account.cloud.ec2.boot_delay(3600)
    denied = ApiError("AccessDenied", "is not authorized", 403)
    account.cloud.faults.add(Fault(lambda call, _: call.service == "iam", denied))
    await account.launch(workers=0)
    request = LaunchRequest("worker", "worker", 1, "more")
    assert len(await account.provider().launch(account.spec, [request])) == 1


async def test_a_permissions_boundary_allows_all_that_a_head_does(
    account: Account, images: BakedImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    iam = boto3.client("iam", **account.cloud.ec2.client_options())
    document = iam_policies.to_json(iam_policies.boundary_policy(), "us-west-2")
    boundary = iam.create_policy(PolicyName="limit", PolicyDocument=document)["Policy"]["Arn"]
    provider = {"type": "aws", "region": "us-west-2", "permissions_boundary": boundary}
    account.file(provider=provider, shoal={"bake": True})
    account.cloud.ec2.boot_delay(3600)
    await account.launch(workers=0)
    use_role_of_head(account, monkeypatch)
    head = account.provider("head", on_head=True)
    request = LaunchRequest("worker", "worker", 1, "t")
    (worker,) = await head.launch(account.spec, [request])
    image = await images.bake(account.spec, worker, "hash", "{}")
    (listed,) = await images.list_images("mine")
    assert listed.id == image
    await images.delete("mine", [listed])
    await head.terminate(account.spec, [worker])
