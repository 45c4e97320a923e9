"""Everything that a person owns in an account: listed, and what was left behind removed."""

from __future__ import annotations

import json
from typing import Any

import boto3
import pytest

from tests.aws.bed import Bed

pytestmark = pytest.mark.simcloud


def client(bed: Bed, service: str = "ec2") -> Any:
    return boto3.client(service, **bed.cloud.ec2.client_options())


def launch(bed: Bed, **tags: str) -> str:
    """A machine that somebody else's tools made."""
    labels = [{"Key": key.replace("_", "-"), "Value": value} for key, value in tags.items()]
    answer = client(bed).run_instances(
        ImageId="ami-12345678",
        InstanceType="m5.large",
        MinCount=1,
        MaxCount=1,
        TagSpecifications=[{"ResourceType": "instance", "Tags": labels}],
    )
    return str(answer["Instances"][0]["InstanceId"])


async def listed(bed: Bed) -> dict[str, dict[str, Any]]:
    done = await bed.shoal("ls --all-regions --json")
    assert done.code == 0, done.stderr
    return {entry["cluster"]: entry for entry in json.loads(done.stdout)}


async def test_clusters_are_listed_and_only_what_nobody_leads_is_removed(bed: Bed) -> None:
    await bed.up()
    rays = launch(bed, ray_cluster_name="rays", ray_node_type="head")
    lost = launch(bed, ray_cluster_name="lost", ray_node_type="worker")
    left = client(bed).create_security_group(
        GroupName="shoal-left",
        Description="left",
        TagSpecifications=[
            {
                "ResourceType": "security-group",
                "Tags": [{"Key": "shoal-cluster", "Value": "left"}],
            }
        ],
    )["GroupId"]

    found = await listed(bed)
    assert (found["mine"]["nodes"], found["mine"]["state"]) == (3, "up")
    assert found["mine"]["price_per_hour"] > 0
    assert (found["rays"]["made_by"], found["rays"]["state"]) == ("ray", "up")
    assert found["lost"]["state"] == "no head; shoal gc"
    assert found["left"]["others"] == ["security group shoal-left"]

    refused = await bed.shoal("gc")
    assert refused.code == 2, "nobody is there to say yes"
    assert lost in refused.stderr

    done = await bed.shoal("gc --yes")
    assert done.code == 0, done.stderr
    assert lost not in bed.running()
    assert rays in bed.running()
    groups = {g["GroupId"] for g in client(bed).describe_security_groups()["SecurityGroups"]}
    assert left not in groups
    assert set(await listed(bed)) == {"mine", "rays"}

    assert "nothing was left behind" in (await bed.shoal("gc --yes")).stderr
    client(bed).terminate_instances(InstanceIds=[rays])
    await bed.down()
