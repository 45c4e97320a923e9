"""Roles and instance profiles: their listing, page by page, and what users may do with them."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from click.testing import CliRunner

from shoal.cli import main
from shoal.core.errors import DeniedError
from shoal.providers.aws import iam_policies, iam_roles, instances, tags
from shoal.providers.aws.aws_client import AwsClient
from shoal.providers.model import LaunchRequest
from tests.providers.aws.aws_bed import cluster_file, limit_laptop
from tests.providers.aws.manual_clock import ManualClock
from tests.providers.aws.provider_account import Account
from tests.simcloud.calls import ApiError
from tests.simcloud.ec2 import ACCESS_KEY
from tests.simcloud.faults import Fault

CREATED = datetime(2026, 1, 1, tzinfo=timezone.utc)


class PagedClient(AwsClient):
    """An account whose listings have one entry per page, and throttle the second page at first."""

    def __init__(self, names: list[str], throttled: int = 0) -> None:
        super().__init__("us-west-2", ManualClock())
        self._names = names
        self._throttled = throttled

    def _client(self, service: str) -> Any:
        keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
        client = boto3.client("iam", region_name=self.region, **keys)
        client._make_api_call = self._respond
        return client

    def _respond(self, operation: str, params: dict[str, Any]) -> dict[str, Any]:
        if operation == "GetInstanceProfile":
            name = params["InstanceProfileName"]
            return {"InstanceProfile": {"Tags": [{"Key": "shoal-cluster", "Value": f"of {name}"}]}}
        index = int(params.get("Marker", 0))
        if index and self._throttled:
            self._throttled -= 1
            error = {"Error": {"Code": "Throttling"}, "ResponseMetadata": {"HTTPStatusCode": 400}}
            raise ClientError(error, operation)
        entry = {"InstanceProfileName": self._names[index], "CreateDate": CREATED}
        is_truncated = index + 1 < len(self._names)
        page = {"InstanceProfiles": [entry], "IsTruncated": is_truncated}
        return {**page, "Marker": str(index + 1)} if is_truncated else page


async def test_every_page_of_profiles_is_read() -> None:
    profiles = await iam_roles.list_profiles(PagedClient(["a", "b", "c"]))
    assert {p.name: p.cluster for p in profiles} == {"a": "of a", "b": "of b", "c": "of c"}
    assert profiles[0].created_at == CREATED.timestamp()


async def test_a_listing_with_a_throttled_page_has_every_profile_once() -> None:
    profiles = await iam_roles.list_profiles(PagedClient(["a", "b", "c"], throttled=2))
    assert [p.name for p in profiles] == ["a", "b", "c"]


@pytest.mark.simcloud
async def test_everything_that_is_created_has_the_files_own_tags(account: Account) -> None:
    account.file(shoal={"tags": {"team": "vision", "shoal-cluster": "another"}})
    await account.launch(workers=1)
    options = account.cloud.ec2.client_options()
    client, iam = boto3.client("ec2", **options), boto3.client("iam", **options)
    (reservation, *_) = client.describe_instances()["Reservations"]
    filters = [{"Name": "tag:shoal-cluster", "Values": ["mine"]}]
    (group,) = client.describe_security_groups(Filters=filters)["SecurityGroups"]
    (pair,) = client.describe_key_pairs(Filters=filters)["KeyPairs"]
    for record in (reservation["Instances"][0], group, pair):
        assert tags.as_dict(record["Tags"])["team"] == "vision"
    (profile,) = iam.list_instance_profiles()["InstanceProfiles"]
    (role,) = profile["Roles"]
    for entries in (
        iam.list_role_tags(RoleName=role["RoleName"])["Tags"],
        iam.get_instance_profile(InstanceProfileName=role["RoleName"])["InstanceProfile"]["Tags"],
    ):
        assert tags.as_dict(entries) == {"team": "vision", "shoal-cluster": "mine"}
    await account.down()


@pytest.mark.simcloud
async def test_a_permissions_boundary_limits_the_roles_that_are_created(account: Account) -> None:
    iam = boto3.client("iam", **account.cloud.ec2.client_options())
    document = iam_policies.to_json(iam_policies.boundary_policy(), "us-west-2")
    boundary = iam.create_policy(PolicyName="limit", PolicyDocument=document)["Policy"]["Arn"]
    limit_laptop(account.cloud, iam_policies.caller_policy(boundary))
    with pytest.raises(DeniedError) as caught:
        await account.launch()
    assert "provider: {permissions_boundary: ARN}" in caught.value.fix
    provider = {"type": "aws", "region": "us-west-2", "permissions_boundary": boundary}
    account.file(provider=provider)
    assert len(await account.launch()) == 3
    await account.down()


@pytest.mark.simcloud
async def test_an_existing_role_for_the_head_needs_no_iam_permissions(account: Account) -> None:
    iam = boto3.client("iam", **account.cloud.ec2.client_options())
    iam.create_instance_profile(InstanceProfileName="ours")
    await account.cloud.ec2.set_leftover_baseline()
    denied = ApiError("AccessDenied", "is not authorized", 403)
    account.cloud.faults.add(Fault(lambda call, _: call.service == "iam", denied))
    account.file(provider={"type": "aws", "region": "us-west-2", "head_role": "ours"})
    (head,) = [i for i in await account.launch() if i.role == "head"]
    client = boto3.client("ec2", **account.cloud.ec2.client_options())
    (reservation,) = client.describe_instances(InstanceIds=[head.id])["Reservations"]
    assert reservation["Instances"][0]["IamInstanceProfile"]["Arn"].endswith("/ours")
    await account.down()


@pytest.mark.simcloud
async def test_the_heads_role_suffices_for_its_own_instances_and_no_others(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    types = cluster_file()["available_node_types"]
    team = [{"Key": "team", "Value": "vision"}]
    types["worker"]["node_config"].update(
        InstanceMarketOptions={"MarketType": "spot"},
        TagSpecifications=[
            {"ResourceType": kind, "Tags": team}
            for kind in ("instance", "network-interface", "spot-instances-request")
        ],
    )
    account.file(available_node_types=types)
    account.cloud.ec2.boot_delay(3600)  # nothing here logs in
    await account.launch(workers=0)
    ec2 = boto3.client("ec2", **account.cloud.ec2.client_options())
    labels = [{"ResourceType": "instance", "Tags": [{"Key": "shoal-cluster", "Value": "another"}]}]
    (other,) = ec2.run_instances(
        ImageId="ami-0387d929287ab193e", MinCount=1, MaxCount=1, TagSpecifications=labels
    )["Instances"]

    role = iam_roles.head_profile_name("mine", "us-west-2")
    key = account.cloud.ec2.metadata.credentials(role)["AccessKeyId"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
    head = account.provider("head", on_head=True)
    (worker,) = await head.launch(account.spec, [LaunchRequest("worker", "worker", 1, "t")])
    aws = AwsClient("us-west-2", ManualClock())
    await instances.tag_status(aws, {worker.id: "up-to-date"})
    with pytest.raises(DeniedError):
        await instances.tag_status(aws, {other["InstanceId"]: "up-to-date"})
    with pytest.raises(DeniedError):
        await instances.request_termination(aws, [other["InstanceId"]])
    await head.terminate(account.spec, [worker])

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    ec2.terminate_instances(InstanceIds=[other["InstanceId"]])
    await account.down()


def test_a_user_with_a_boundary_can_create_only_roles_that_have_it() -> None:
    done = CliRunner().invoke(main, ["iam-policy", "--with-boundary", "arn:aws:iam::1:policy/b"])
    statements = {s["Sid"]: s for s in json.loads(done.stdout)["Statement"]}
    create = statements["CreateClusterRoles"]
    assert create["Condition"] == {
        "StringEquals": {"iam:PermissionsBoundary": "arn:aws:iam::1:policy/b"}
    }
    others = [s for s in statements.values() if s is not create]
    assert not any({"iam:CreateRole", "iam:PutRolePolicy"} & set(s["Action"]) for s in others)
