"""Volumes that are encrypted with a key of the customer."""

from __future__ import annotations

from typing import Any

import boto3
import pytest

from shoal.core.errors import UnreachableError
from shoal.providers.aws import iam_policies
from shoal.providers.model import Instance, LaunchRequest, State
from shoal.providers.protocol import Provider
from tests.polling import until
from tests.providers.aws.aws_bed import CLUSTER, limit_laptop
from tests.providers.aws.provider_account import Account
from tests.simcloud.ec2 import ACCESS_KEY

pytestmark = pytest.mark.simcloud

KEY = "arn:aws:kms:us-west-2:123456789012:key/11111111-2222-3333-4444-555555555555"


def iam(account: Account) -> Any:
    return boto3.client("iam", **account.cloud.ec2.client_options())


async def launch_from_head(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> tuple[Provider, Instance]:
    """A worker that the head launches, with the credentials of its role."""
    (role,) = iam(account).list_roles(PathPrefix="/shoal/")["Roles"]
    credentials = account.cloud.ec2.metadata.credentials(role["RoleName"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", credentials["AccessKeyId"])
    head = account.provider("head", on_head=True)
    (worker,) = await head.launch(account.spec, [LaunchRequest("worker", "worker", 1, "more")])
    return head, worker


@pytest.mark.parametrize("has_boundary", [False, True])
async def test_a_head_may_use_the_accounts_default_key(
    account: Account, monkeypatch: pytest.MonkeyPatch, has_boundary: bool
) -> None:
    if has_boundary:
        document = iam_policies.to_json(iam_policies.boundary_policy(), "us-west-2")
        policy = iam(account).create_policy(PolicyName="limit", PolicyDocument=document)["Policy"]
        limit_laptop(account.cloud, iam_policies.caller_policy(policy["Arn"]))
        provider = {"type": "aws", "region": "us-west-2", "permissions_boundary": policy["Arn"]}
        account.file(provider=provider)
    account.cloud.ec2.encryption.customer_key = KEY
    await account.launch(workers=1)
    head, worker = await launch_from_head(account, monkeypatch)

    async def is_running() -> bool:
        instances = await head.list_instances(CLUSTER)
        return any(i.id == worker.id and i.state is State.RUNNING for i in instances)

    await until(is_running, "the worker runs")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    await account.down()


async def test_a_key_that_the_head_may_not_use_is_named_as_the_cause(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    await account.launch(workers=1)
    account.cloud.ec2.encryption.customer_key = KEY  # since the head was launched
    head, worker = await launch_from_head(account, monkeypatch)
    with pytest.raises(UnreachableError, match="the caller may not use the KMS key") as raised:
        await head.runner(account.spec, worker).connect(timeout=60)
    assert "Client error on launch" in raised.value.why
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    await account.down()
