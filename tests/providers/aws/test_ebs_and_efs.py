"""EBS volumes of launches, bucket policies, and EFS file systems by name."""

from __future__ import annotations

import json
from typing import Any

import boto3
import pytest

from shoal.providers.aws import ebs, iam_policies
from shoal.providers.model import LaunchRequest
from shoal.spec.cluster_spec import VolumeSpec
from tests.providers.aws.aws_bed import SHOAL, Bed, cluster_file
from tests.providers.aws.provider_account import Account
from tests.providers.local.ssh_bed import QUICK_START
from tests.simcloud.disks import blank_disk

pytestmark = pytest.mark.simcloud


def client(account: Account, service: str) -> Any:
    return boto3.client(service, **account.cloud.ec2.client_options())


def test_new_volumes_are_deleted_with_their_instance_unless_kept() -> None:
    volumes = [
        VolumeSpec("/dev/sdf", 101, type="io2", iops=4000, throughput=250, keep=True),
        VolumeSpec("/dev/sdg", 8),
        VolumeSpec("/dev/nvme1n1"),
    ]
    large = {
        "VolumeSize": 101, "VolumeType": "io2", "DeleteOnTermination": False, "Iops": 4000,
        "Throughput": 250,
    }  # fmt: skip
    small = {"VolumeSize": 8, "VolumeType": "gp3", "DeleteOnTermination": True}
    assert ebs.block_device_mappings(volumes) == [
        {"DeviceName": "/dev/sdf", "Ebs": large}, {"DeviceName": "/dev/sdg", "Ebs": small},
    ]  # fmt: skip


IMAGE = {
    "RootDeviceName": "/dev/xvda",
    "BlockDeviceMappings": [{"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 8}}],
}


def test_the_default_root_volume_is_at_the_amis_root_device_and_holds_its_snapshot() -> None:
    volume = {"VolumeSize": 100, "VolumeType": "gp3"}
    assert ebs.default_root_volume(IMAGE, ()) == {"DeviceName": "/dev/xvda", "Ebs": volume}
    data = {"DeviceName": "/dev/sdf", "Ebs": {"VolumeSize": 500}}
    assert ebs.default_root_volume(IMAGE, [data]) == {"DeviceName": "/dev/xvda", "Ebs": volume}
    large = {"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 140}}
    root = ebs.default_root_volume({**IMAGE, "BlockDeviceMappings": [large]}, ())
    assert root is not None
    assert root["Ebs"]["VolumeSize"] == 140
    assert ebs.default_root_volume(IMAGE, [large]) is None
    assert ebs.default_root_volume({**IMAGE, "RootDeviceType": "instance-store"}, ()) is None


async def test_instances_have_a_root_volume_that_holds_more_than_the_system(
    account: Account,
) -> None:
    instances = await account.launch(workers=1)
    filters = [{"Name": "attachment.instance-id", "Values": [i.id for i in instances]}]
    volumes = client(account, "ec2").describe_volumes(Filters=filters)["Volumes"]
    assert [(v["Size"], v["VolumeType"]) for v in volumes] == [(100, "gp3")] * 2
    await account.down()


def test_a_read_only_bucket_cannot_be_written() -> None:
    allowed = {
        s["Sid"]: (s["Action"], s["Resource"])
        for s in iam_policies.bucket_policy({"in": True, "out": False}, ["r"])["Statement"]
    }
    assert allowed["ReadObjects"] == (["s3:GetObject"], ["arn:aws:s3:::in/*", "arn:aws:s3:::out/*"])
    assert allowed["WriteObjects"][1] == ["arn:aws:s3:::out/*"]
    assert allowed["PassRolesToWorkers"] == (["iam:PassRole"], ["r"])


def test_a_head_without_buckets_may_still_pass_the_workers_role() -> None:
    """IAM rejects a statement without resources."""
    (only,) = iam_policies.bucket_policy({}, ["r"])["Statement"]
    assert only["Action"] == ["iam:PassRole"]


async def test_every_instance_has_its_volumes_and_down_deletes_them(account: Account) -> None:
    account.file(
        shoal={"volumes": {"/data": {"size": 20}, "/w": {"size": 5, "node_types": ["worker"]}}}
    )
    await account.launch(workers=1)
    volumes = client(account, "ec2").describe_volumes()["Volumes"]
    sizes = sorted((v["Attachments"][0]["Device"], v["Size"]) for v in volumes)
    assert sizes[-3:] == [("/dev/sdf", 20), ("/dev/sdf", 20), ("/dev/sdg", 5)]
    await account.down()


async def test_up_waits_for_a_volume_that_is_attached_late(bed: Bed) -> None:
    with blank_disk(1024) as disk:
        types = {"head": {"node_config": {"InstanceType": "m5.large"}, "resources": {}}}
        shoal = {**QUICK_START["shoal"], "volumes": {"/data": {"size": 1}}}
        await bed.write(available_node_types=types, max_workers=0, shoal=shoal)
        up = await bed.laptop.popen(f"exec {SHOAL} up c.yaml --yes --json -v")
        async for line in up.stdout:
            if b"mounting volumes" in line:
                break
        (id,) = bed.running()
        host = bed.cloud.ec2.host(id)
        await disk.plug_into(host, "xvdf")  # its name on instances without NVMe
        done = await up.finish(timeout=120)
        assert '"event": "ready"' in done.stdout, done.stdout + done.stderr
        assert (await host.run("stat -c %U /data", user="ubuntu")).stdout == "ubuntu\n"
        await bed.down()


async def test_instances_may_use_the_buckets_of_the_file_and_workers_nothing_else(
    account: Account,
) -> None:
    account.file(shoal={"mounts": {"s3://models": {"read_only": True}, "/out": {"s3": "results"}}})
    created = await account.launch(workers=1)
    iam, ec2 = client(account, "iam"), client(account, "ec2")
    roles = {r["RoleName"]: r for r in iam.list_roles(PathPrefix="/shoal/")["Roles"]}
    allowed = {name: iam.list_role_policies(RoleName=name)["PolicyNames"] for name in roles}
    head, workers = sorted(allowed, key=len)
    assert (sorted(allowed[head]), allowed[workers]) == (["buckets", "controller"], ["buckets"])
    document = iam.get_role_policy(RoleName=head, PolicyName="buckets")["PolicyDocument"]
    assert workers in json.dumps(document), "it passes the role to workers that it launches"
    later = await account.provider("head-home", on_head=True).launch(
        account.spec, [LaunchRequest("worker", "worker", 1, "later")]
    )
    reservations = ec2.describe_instances(InstanceIds=[i.id for i in (*created, *later)])[
        "Reservations"
    ]
    profiles = {
        record["InstanceId"]: record["IamInstanceProfile"]["Arn"].rpartition("/")[2]
        for reservation in reservations
        for record in reservation["Instances"]
    }
    assert profiles == {i.id: head if i.role == "head" else workers for i in (*created, *later)}
    await account.down()


async def test_the_workers_role_is_deleted_also_if_the_file_names_the_heads_profile(
    account: Account,
) -> None:
    iam = client(account, "iam")
    iam.create_instance_profile(InstanceProfileName="theirs")
    await account.cloud.ec2.set_leftover_baseline()
    node_types = cluster_file()["available_node_types"]
    node_types["head"]["node_config"]["IamInstanceProfile"] = {"Name": "theirs"}
    account.file(available_node_types=node_types, shoal={"mounts": {"/d": {"s3": "data"}}})
    await account.launch(workers=1)
    assert [r["RoleName"].endswith("-workers") for r in iam.list_roles()["Roles"]] == [True]
    await account.down()


async def test_workers_that_the_head_launches_can_use_a_bucket_added_later(
    account: Account,
) -> None:
    await account.launch(workers=0)
    account.file(shoal={"mounts": {"/d": {"s3": "data"}}})
    await account.provider().launch(account.spec, [LaunchRequest("worker", "worker", 1, "more")])
    iam = client(account, "iam")
    head, workers = sorted((r["RoleName"] for r in iam.list_roles()["Roles"]), key=len)
    document = iam.get_role_policy(RoleName=head, PolicyName="buckets")["PolicyDocument"]
    assert workers in json.dumps(document), "else AWS denies every launch of the controller"
    await account.down()


async def test_a_file_system_is_found_by_name_and_the_heads_spec_has_its_id(
    account: Account,
) -> None:
    efs = client(account, "efs")
    id = efs.create_file_system(
        CreationToken="x", Tags=[{"Key": "Name", "Value": "training-data"}]
    )["FileSystemId"]
    account.file(shoal={"mounts": {"/d": {"efs": "training-data"}, "/e": {"efs": "fs-0abc"}}})
    provider = account.provider()
    capabilities = provider.capabilities
    assert capabilities.head_spec is not None
    assert capabilities.file_system_source is not None
    assert await provider.preflight(account.spec) == []
    region = capabilities.head_spec(account.spec).provider.settings["region"]
    assert capabilities.file_system_source("training-data") == f"{id}.efs.{region}.amazonaws.com:/"
    assert capabilities.file_system_source("fs-0abc") == f"fs-0abc.efs.{region}.amazonaws.com:/"
    mounts = capabilities.head_spec(account.spec).shoal.mounts
    assert {path: mount.efs for path, mount in mounts.items()} == {
        "/d": id,
        "/e": "fs-0abc",
    }
    account.file(shoal={"mounts": {"/d": {"efs": "trainning-data"}}})
    (finding,) = await provider.preflight(account.spec)
    assert finding.what.startswith("there is no EFS file system named trainning-data")
    assert "training-data" in finding.why
    efs.delete_file_system(FileSystemId=id)


async def test_a_file_system_is_found_by_name_among_more_than_a_page_of_them(
    account: Account,
) -> None:
    efs = client(account, "efs")
    for number in range(105):
        efs.create_file_system(
            CreationToken=str(number), Tags=[{"Key": "Name", "Value": f"data-{number}"}]
        )
    mounts = {f"/{number}": {"efs": f"data-{number}"} for number in range(105)}
    account.file(shoal={"mounts": mounts})
    assert list(await account.provider().preflight(account.spec)) == []
