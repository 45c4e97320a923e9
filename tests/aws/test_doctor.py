"""`shoal doctor`: mistakes found before a cent is spent, on an account that has them all."""

from __future__ import annotations

import json

import boto3
import pytest

from tests.aws.bed import Bed
from tests.simcloud.calls import ApiError

PUBLIC_KEY = b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdD7y3aLq454yWBdwLWbieU1ebz9/cu7/QEXn9OIeZJ"

pytestmark = pytest.mark.simcloud


async def test_a_file_with_nothing_wrong_gets_a_clean_bill(bed: Bed) -> None:
    done = await bed.shoal("doctor c.yaml")
    assert done.code == 0, done.stdout + done.stderr
    assert "nothing was found" in done.stdout
    assert not bed.running()


async def test_everything_is_told_at_once_with_its_line_and_its_fix(bed: Bed) -> None:
    client = boto3.client("ec2", **bed.cloud.ec2.client_options())
    group = client.create_security_group(GroupName="web", Description="web")["GroupId"]
    client.import_key_pair(
        KeyName="theirs",
        PublicKeyMaterial=PUBLIC_KEY,
    )
    denied = ApiError("UnauthorizedOperation", "You are not authorized to perform this operation.")
    bed.cloud.faults.fail_call("ImportKeyPair", error=denied, times=9)
    text = f"""\
cluster_name: mine
provider: {{type: aws, region: us-west-2, availability_zone: us-west-2z}}
auth: {{ssh_user: ubuntu}}
max_workers: 9
file_mounts: {{/data: ./nowhere}}
head_node_type: head
available_node_types:
  head: {{node_config: {{InstanceType: m5.large, KeyName: theirs}}}}
  lost: {{node_config: {{InstanceType: m5.enormous}}, min_workers: 1}}
  bare: {{node_config: {{ImageId: ami-none, KeyName: nobody}}, min_workers: 1}}
  shut: {{node_config: {{SecurityGroupIds: [{group}]}}, min_workers: 1}}
  gone: {{node_config: {{SecurityGroupIds: [sg-none]}}, min_workers: 1}}
"""
    await bed.laptop.run("cat > c.yaml", stdin=text)
    done = await bed.shoal("doctor c.yaml --json")
    assert done.code == 2, done.stderr
    found = {f["what"]: f for f in json.loads(done.stdout)}
    told = "\n".join(found)
    for message in (
        "nowhere does not exist",
        "there is no subnet in us-west-2z",
        "you may not call ImportKeyPair",
        "there is no instance type m5.enormous",
        "there is no image ami-none",
        "there is no key pair nobody",
        "the private half of the key pair theirs is not here",
        "there is no security group sg-none",
        f"no security group of {group} lets SSH in",
    ):
        assert message in told, done.stdout
    assert found["there is no image ami-none"]["place"].endswith("c.yaml:10")
    assert all(f["fix"] for f in found.values())
    assert not bed.running()


async def test_without_credentials_the_profiles_that_there_are_are_named(bed: Bed) -> None:
    await bed.laptop.run(
        "mkdir -p ~/.aws && printf '[profile work]\\nregion = us-west-2\\n' > ~/.aws/config"
    )
    done = await bed.laptop.run(
        "env -u AWS_ACCESS_KEY_ID -u AWS_SECRET_ACCESS_KEY AWS_EC2_METADATA_DISABLED=true "
        "shoal doctor c.yaml"
    )
    assert done.code == 2
    assert "there are no usable AWS credentials" in done.stdout
    assert "AWS_PROFILE=work shoal up" in done.stdout


async def test_a_region_that_does_not_exist_is_told(bed: Bed) -> None:
    await bed.write(provider={"type": "aws", "region": "us-wst-2"})
    done = await bed.shoal("doctor c.yaml")
    assert done.code == 2
    assert "c.yaml:1: there is no region us-wst-2" in done.stdout
    assert "provider: {region: us-west-2}" in done.stdout
