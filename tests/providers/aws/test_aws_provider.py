"""Launching, listing, stopping and terminating instances in an account with faults."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from typing import Any

import boto3
import pytest

from shoal.core.errors import AuthError, CapacityError, ConfigError
from shoal.core.events import Warned
from shoal.providers.aws import cluster_resources, tags
from shoal.providers.aws.aws_client import AwsClient
from shoal.providers.aws.instances import request_termination
from shoal.providers.model import LaunchRequest, RegistryLogin, State
from tests.polling import until
from tests.providers.aws.aws_bed import CLUSTER, cluster_file
from tests.providers.aws.manual_clock import ManualClock
from tests.providers.aws.provider_account import Account
from tests.simcloud.calls import ApiError

pytestmark = pytest.mark.simcloud


def ec2(account: Account) -> Any:
    return boto3.client("ec2", **account.cloud.ec2.client_options())


def types(**configs: dict[str, Any]) -> dict[str, Any]:
    """The file's node types, with these node_configs."""
    known: dict[str, Any] = cluster_file()["available_node_types"]
    for name, config in configs.items():
        known[name]["node_config"].update(config)
    return known


async def test_a_launch_falls_back_to_the_zone_with_capacity(account: Account) -> None:
    for zone in ("us-west-2a", "us-west-2b"):
        account.cloud.faults.refuse_capacity(zone=zone)
    assert len(await account.launch()) == 3
    assert account.attempts("worker") == [
        ("m5.large", "on-demand", "us-west-2a", 0),
        ("m5.large", "on-demand", "us-west-2b", 0),
        ("m5.large", "on-demand", "us-west-2c", 2),
    ]
    account.events.clear()
    await account.provider().launch(account.spec, [LaunchRequest("worker", "worker", 1, "more")])
    assert account.attempts("worker") == [("m5.large", "on-demand", "us-west-2c", 1)]
    await account.down()


async def test_a_spot_launch_falls_back_to_other_types_then_to_on_demand(account: Account) -> None:
    account.file(
        available_node_types=types(worker={"InstanceMarketOptions": {"MarketType": "spot"}}),
        shoal={"fallback": {"worker": ["m5.xlarge"]}, "on_demand_fallback": True},
    )
    account.cloud.faults.refuse_capacity(market="spot")
    assert len(await account.launch()) == 3
    order = list(dict.fromkeys(attempt[:2] for attempt in account.attempts("worker")))
    assert order == [("m5.large", "spot"), ("m5.xlarge", "spot"), ("m5.large", "on-demand")]
    await account.down()


async def test_a_partial_launch_is_completed_in_another_zone(account: Account) -> None:
    account.cloud.faults.partial_launch(1)
    assert len(await account.launch()) == 3
    assert [launched for *_, launched in account.attempts("worker")] == [1, 1]
    await account.down()


@pytest.mark.long
async def test_a_partial_launch_is_completed_in_another_subnet_of_the_zone(
    account: Account,
) -> None:
    client = ec2(account)
    first = client.describe_subnets()["Subnets"][0]
    zone = first["AvailabilityZone"]
    second = client.create_subnet(
        VpcId=first["VpcId"], CidrBlock="172.31.240.0/24", AvailabilityZone=zone
    )["Subnet"]
    client.modify_subnet_attribute(SubnetId=second["SubnetId"], MapPublicIpOnLaunch={"Value": True})
    subnets = {"SubnetIds": [first["SubnetId"], second["SubnetId"]]}
    account.file(available_node_types=types(worker=subnets))
    await account.cloud.ec2.set_leftover_baseline()
    account.cloud.faults.partial_launch(1)
    assert len(await account.launch()) == 3
    assert [
        (zone_tried, launched) for _, _, zone_tried, launched in account.attempts("worker")
    ] == [(zone, 1), (zone, 1)]
    await account.down()


async def test_instances_launched_before_an_error_are_terminated(account: Account) -> None:
    """One of two workers is running when AWS refuses the next request."""
    account.cloud.faults.partial_launch(1)
    error = ApiError("UnauthorizedOperation", "You are not authorized.", 403)
    account.cloud.faults.fail_call("RunInstances", nth=3, error=error)
    with pytest.raises(AuthError):
        await account.launch()
    assert len(account.cloud.ledger.rentals) == 2
    assert not account.cloud.ledger.running()
    await account.down()


async def test_missing_worker_capacity_leaves_the_rest_of_the_cluster(account: Account) -> None:
    account.file(available_node_types=types(worker={"InstanceType": "c5.large"}))
    account.cloud.faults.refuse_capacity(type="c5.large")
    assert [i.role for i in await account.launch()] == ["head"]
    await account.down()


async def test_missing_head_capacity_terminates_everything(account: Account) -> None:
    account.file(available_node_types=types(head={"InstanceType": "c5.large"}))
    account.cloud.faults.refuse_capacity(type="c5.large")
    with pytest.raises(CapacityError) as caught:
        await account.launch()
    assert "c5.large on-demand in us-west-2a, us-west-2b, us-west-2c" in caught.value.why
    assert "shoal: {fallback: {head:" in caught.value.fix
    assert not account.cloud.ledger.running()
    await account.cloud.assert_nothing_left()


async def test_a_config_error_ends_the_launch_and_terminates_everything(account: Account) -> None:
    error = ApiError("InvalidParameterValue", "Value (x) for parameter y is invalid.")
    account.cloud.faults.fail_call("RunInstances", nth=2, error=error)
    with pytest.raises(ConfigError) as caught:
        await account.launch()
    assert "Value (x) for parameter y is invalid" in caught.value.why
    assert account.cloud.ledger.calls()["RunInstances"] == 2
    assert not account.cloud.ledger.running()
    await account.down()


async def test_an_unknown_key_in_node_config_is_reported_before_any_launch(
    account: Account,
) -> None:
    account.file(available_node_types=types(worker={"InstanceTipe": "m5.large"}))
    with pytest.raises(ConfigError) as caught:
        await account.launch()
    assert "InstanceTipe" in caught.value.why
    await account.down()


async def test_every_throttled_call_is_retried(account: Account) -> None:
    """The first call of each action is throttled."""
    faults = {action: account.cloud.faults.throttle(action, times=1) for action in ACTIONS}
    assert len(await account.launch()) == 3
    await account.down()
    assert {action for action, fault in faults.items() if not fault.struck} == set()
    assert set(account.cloud.ledger.calls()) == set(ACTIONS)


ACTIONS = (
    "DescribeInstances", "DescribeInstanceTypes", "DescribeSubnets", "DescribeSecurityGroups",
    "GetInstanceProfile", "ImportKeyPair", "CreateRole", "CreateSecurityGroup", "PutRolePolicy",
    "AuthorizeSecurityGroupIngress", "CreateInstanceProfile", "AddRoleToInstanceProfile",
    "GetParameters", "DescribeImages", "GetEbsDefaultKmsKeyId", "RunInstances",
    "TerminateInstances", "DeleteSecurityGroup", "DescribeSnapshots",
    "DescribeKeyPairs", "DeleteKeyPair", "RemoveRoleFromInstanceProfile", "DeleteInstanceProfile",
    "ListRolePolicies", "ListAttachedRolePolicies", "DeleteRolePolicy", "DeleteRole",
)  # fmt: skip


async def test_a_lost_response_never_creates_anything_twice(account: Account) -> None:
    """The first call of each action takes effect, but its response is lost."""
    faults = [account.cloud.faults.fail_call(action, when="after") for action in ACTIONS]
    assert len(await account.launch()) == 3
    assert len(account.cloud.ledger.rentals) == 3
    await account.down()
    assert all(fault.struck for fault in faults)


async def test_a_lagging_listing_hides_nothing_from_the_launching_laptop(account: Account) -> None:
    account.cloud.faults.lag_listings(3)
    created = await account.launch()
    instances = await account.provider().list_instances(CLUSTER)
    assert {i.id for i in instances} == {i.id for i in created}
    await account.down()


async def test_the_number_of_calls_is_independent_of_the_cluster_size(account: Account) -> None:
    def calls() -> int:
        """All calls except polls, whose number varies."""
        calls_made = account.cloud.ledger.calls()
        return sum(calls_made.values()) - calls_made["DescribeInstances"]

    counts = []
    for token, workers in (("few", 2), ("more", 9)):
        before = calls()
        assert len(await account.launch(token, workers)) == workers + 1
        counts.append(calls() - before)
        await account.down()
    assert counts[1] <= counts[0]


async def test_ssh_is_allowed_from_the_callers_address_only(account: Account) -> None:
    await account.launch(workers=1)
    (group,) = ec2(account).describe_security_groups(Filters=tags.cluster_filter(CLUSTER))[
        "SecurityGroups"
    ]
    with urllib.request.urlopen(f"{account.cloud.ec2.local_url}/checkip") as reply:
        caller = reply.read().decode().strip()
    ranges = [r["CidrIp"] for rule in group["IpPermissions"] for r in rule["IpRanges"]]
    assert ranges == [f"{caller}/32"]
    await account.down()


async def test_resources_that_the_file_names_are_used_and_not_deleted(account: Account) -> None:
    client = ec2(account)
    subnet = client.describe_subnets()["Subnets"][2]
    group = client.create_security_group(
        GroupName="mine-already", Description="x", VpcId=subnet["VpcId"]
    )["GroupId"]
    client.create_key_pair(KeyName="mine-already")
    template = {"InstanceType": "c5.large", "EbsOptimized": True}
    client.create_launch_template(LaunchTemplateName="mine", LaunchTemplateData=template)
    iam = boto3.client("iam", **account.cloud.ec2.client_options())
    iam.create_instance_profile(InstanceProfileName="mine-already")
    await account.cloud.ec2.set_leftover_baseline()
    config = {
        "SubnetIds": [subnet["SubnetId"]],
        "SecurityGroupIds": [group],
        "KeyName": "mine-already",
        "IamInstanceProfile": {"Name": "mine-already"},
    }
    node_types = types(head=config, worker=config)
    node_types["worker"]["node_config"]["LaunchTemplate"] = {"LaunchTemplateName": "mine"}
    del node_types["worker"]["node_config"]["InstanceType"]
    account.file(available_node_types=node_types)
    await account.launch()
    assert {rental.type for rental in account.cloud.ledger.running()} == {"m5.large", "c5.large"}
    created = set(account.cloud.ledger.calls()) & {"ImportKeyPair", "CreateRole"}
    assert not created
    await account.down()


async def test_down_waits_for_instances_that_are_already_terminating(account: Account) -> None:
    created = await account.launch()
    ec2(account).terminate_instances(InstanceIds=[i.id for i in created])
    instances = await account.provider().list_instances(CLUSTER)
    assert {i.state for i in instances} <= {State.TERMINATING}
    await account.down()


async def test_down_deletes_a_role_to_which_policies_were_added(account: Account) -> None:
    await account.launch(workers=1)
    iam = boto3.client("iam", **account.cloud.ec2.client_options())
    (role,) = iam.list_roles(PathPrefix="/shoal/")["Roles"]
    name = {"RoleName": role["RoleName"]}
    iam.attach_role_policy(**name, PolicyArn="arn:aws:iam::aws:policy/AmazonS3ReadOnlyAccess")
    iam.attach_role_policy(**name, PolicyArn="arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore")
    allow = {"Effect": "Allow", "Action": ["s3:GetObject"], "Resource": ["arn:aws:s3:::data/*"]}
    document = {"Version": "2012-10-17", "Statement": [allow]}
    iam.put_role_policy(**name, PolicyName="mine", PolicyDocument=json.dumps(document))
    await account.down()


async def test_an_instance_that_ec2_has_forgotten_does_not_keep_others_running(
    account: Account,
) -> None:
    """One unknown id fails the whole call."""
    head, worker = await account.launch(workers=1)
    aws = AwsClient("us-west-2", ManualClock())
    await request_termination(aws, [head.id, "i-0123456789abcdef0"])
    remaining = list(await account.provider().list_instances(CLUSTER))
    assert [i.id for i in remaining if i.state is not State.TERMINATING] == [worker.id]
    await account.down()


async def test_a_security_group_in_use_elsewhere_is_kept_and_reported(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_resources, "_DELETE_GROUP_SECONDS", 1.0)
    await account.launch()
    client = ec2(account)
    groups = client.describe_security_groups(Filters=tags.cluster_filter(CLUSTER))["SecurityGroups"]
    other = client.run_instances(
        ImageId="ami-0387d929287ab193e", MinCount=1, MaxCount=1,
        SubnetId=client.describe_subnets(
            Filters=[{"Name": "vpc-id", "Values": [groups[0]["VpcId"]]}]
        )["Subnets"][0]["SubnetId"],
        SecurityGroupIds=[groups[0]["GroupId"]],
    )["Instances"][0]["InstanceId"]  # fmt: skip
    with pytest.raises(AssertionError, match="security group"):
        await account.down()
    (warning,) = [e for e in account.events if isinstance(e, Warned)]
    assert groups[0]["GroupName"] in warning.what
    client.terminate_instances(InstanceIds=[other])
    await until(lambda: not account.cloud.ledger.running(), "the other instance is gone")
    await account.down()


async def test_concurrent_launches_end_with_one_head(account: Account) -> None:
    outcomes = await asyncio.gather(
        account.launch("one"), account.launch("two"), return_exceptions=True
    )
    succeeded = [outcome for outcome in outcomes if isinstance(outcome, list)]
    assert len(succeeded) == 1, outcomes
    instances = await account.provider().list_instances(CLUSTER)
    assert {i.id for i in instances} == {i.id for i in succeeded[0]}
    await account.down()


async def test_the_heads_role_has_no_wildcard_permissions(account: Account) -> None:
    await account.launch(workers=1)
    iam = boto3.client("iam", **account.cloud.ec2.client_options())
    (profile,) = iam.list_instance_profiles()["InstanceProfiles"]
    (role,) = profile["Roles"]
    policy = iam.get_role_policy(RoleName=role["RoleName"], PolicyName="controller")
    assert "ec2:*" not in json.dumps(policy["PolicyDocument"])
    await account.down()


async def test_a_head_may_pass_the_profile_that_the_file_names_for_workers(
    account: Account,
) -> None:
    iam = boto3.client("iam", **account.cloud.ec2.client_options())
    trust = '{"Version": "2012-10-17", "Statement": []}'
    role = iam.create_role(RoleName="theirs", AssumeRolePolicyDocument=trust)["Role"]["Arn"]
    iam.create_instance_profile(InstanceProfileName="named")
    iam.add_role_to_instance_profile(InstanceProfileName="named", RoleName="theirs")
    await account.cloud.ec2.set_leftover_baseline()
    own = {"IamInstanceProfile": {"Name": "named"}, "InstanceMarketOptions": {"MarketType": "spot"}}
    account.file(available_node_types=types(worker=own))
    await account.launch(workers=0)
    (head,) = (r["RoleName"] for r in iam.list_roles(PathPrefix="/shoal/")["Roles"])
    document = iam.get_role_policy(RoleName=head, PolicyName="buckets")["PolicyDocument"]
    (statement,) = document["Statement"]
    assert (statement["Action"], statement["Resource"]) == (["iam:PassRole"], [role])
    service_roles = iam.list_roles(PathPrefix="/aws-service-role/")["Roles"]
    assert len(service_roles) == 1, "a head may not create the service-linked role for spot"
    await account.down()


async def test_instances_stop_and_start_and_their_remaining_costs_are_reported(
    account: Account,
) -> None:
    disk = {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 100, "VolumeType": "gp3"}}
    spot = {"InstanceMarketOptions": {"MarketType": "spot"}}
    account.file(available_node_types=types(head={"BlockDeviceMappings": [disk]}, worker=spot))
    await account.launch()
    provider = account.provider()
    (costs,) = await provider.stop(account.spec, await provider.list_instances(CLUSTER))
    assert "100 GiB" in costs
    assert "$8.00 per month by AWS's list prices for us-west-2" in costs
    instances = await provider.list_instances(CLUSTER)
    # A spot instance cannot be stopped.
    assert [(i.role, i.state) for i in instances] == [("head", State.STOPPED)]
    started = await provider.start(account.spec, instances)
    assert [(i.id, i.state) for i in started] == [(instances[0].id, State.RUNNING)]
    await account.down()


async def test_offerings_have_the_resources_that_ec2_reports(account: Account) -> None:
    template = {"InstanceType": "g4dn.12xlarge"}
    ec2(account).create_launch_template(LaunchTemplateName="big", LaunchTemplateData=template)
    node_types = types(worker={"LaunchTemplate": {"LaunchTemplateName": "big"}})
    del node_types["worker"]["node_config"]["InstanceType"]
    node_types["other"] = {"node_config": {"InstanceType": "inf1.6xlarge"}}
    node_types["unknown"] = {"node_config": {"InstanceType": "z9.mega"}}
    account.file(available_node_types=node_types)
    provider = account.provider()
    offers = {offer.node_type: offer for offer in await provider.offerings(account.spec)}
    assert set(offers) == {"head", "worker", "other"}
    assert offers["worker"].resources["GPU"] == 4
    assert offers["worker"].resources["accelerator_type:T4"] == 1
    assert offers["other"].resources["neuron_cores"] == 16
    assert offers["head"].price_per_hour == 0.096


async def test_an_unknown_instance_type_is_reported_before_anything_is_created(
    account: Account,
) -> None:
    account.file(available_node_types=types(worker={"InstanceType": "z9.mega"}))
    with pytest.raises(ConfigError) as caught:
        await account.launch()
    assert "z9.mega" in caught.value.what
    await account.cloud.assert_nothing_left()


async def test_an_unknown_instance_type_falls_back_to_a_known_one(
    account: Account,
) -> None:
    account.file(
        available_node_types=types(worker={"InstanceType": "z9.mega"}),
        shoal={"fallback": {"worker": ["z9.giga", "c5.large"]}},
    )
    await account.launch(workers=1)
    assert account.attempts("worker") == [("c5.large", "on-demand", "us-west-2a", 1)]
    await account.down()


async def test_ecr_images_are_pulled_with_the_accounts_credentials(
    account: Account,
) -> None:
    server = "123456789012.dkr.ecr.us-west-2.amazonaws.com"
    account.file(docker={"image": f"{server}/team/box:1", "container_name": "box"})
    provider = account.provider()
    login = provider.capabilities.registry_login
    assert login is not None
    logins = [await login(f"{server}/team/box:1") for _ in range(3)]
    assert logins == [RegistryLogin(server, "AWS", "123456789012-auth-token")] * 3
    assert "auth-token" not in repr(logins)
    assert account.cloud.ledger.calls()["GetAuthorizationToken"] == 1, "one for all nodes"
    assert await login("rayproject/ray:latest") is None

    await account.launch(workers=1)
    iam = boto3.client("iam", **account.cloud.ec2.client_options())
    (role,) = iam.list_instance_profiles()["InstanceProfiles"][0]["Roles"]
    policy = iam.get_role_policy(RoleName=role["RoleName"], PolicyName="controller")
    allowed = {s["Sid"]: s["Resource"] for s in policy["PolicyDocument"]["Statement"]}
    arn = "arn:aws:ecr:us-west-2:123456789012:repository/team/box"
    assert allowed["PullEcrImages"] == [arn], "the head may pull the images of its nodes"
    await account.down()


async def test_idle_workers_are_stopped_and_started_again(account: Account) -> None:
    workers = [i for i in await account.launch() if i.role == "worker"]
    head = account.provider("head-home", on_head=True)
    stop_or_terminate = head.capabilities.stop_or_terminate
    assert stop_or_terminate is not None
    await stop_or_terminate(account.spec, workers)
    states = {i.id: i.state for i in await head.list_instances(CLUSTER, "worker")}
    assert states == {worker.id: State.STOPPED for worker in workers}
    for _ in range(2):  # the same token gets the same instances
        request = LaunchRequest("worker", "worker", 3, "more")
        created = await head.launch(account.spec, [request])
        assert {i.id for i in workers} < {i.id for i in created}
        assert len(created) == 3
        assert {i.state for i in created} <= {State.PENDING, State.RUNNING}
    assert len(account.cloud.ledger.rentals) == 4
    await account.down()


@pytest.mark.long
async def test_concurrent_launches_use_different_stopped_workers(account: Account) -> None:
    workers = [i for i in await account.launch() if i.role == "worker"]
    head = account.provider("head-home", on_head=True)
    stop_or_terminate = head.capabilities.stop_or_terminate
    assert stop_or_terminate is not None
    await stop_or_terminate(account.spec, workers)
    requests = [LaunchRequest("worker", "worker", 1, token) for token in ("one", "another")]
    taken = await asyncio.gather(*(head.launch(account.spec, [request]) for request in requests))
    assert {i.id for created in taken for i in created} == {i.id for i in workers}
    assert len(account.cloud.ledger.rentals) == 3, "no new instance was launched"
    await stop_or_terminate(account.spec, workers)
    again = await head.launch(account.spec, [LaunchRequest("worker", "worker", 2, "later")])
    assert {i.id for i in again} == {i.id for i in workers}, "they are available again"
    await account.down()


@pytest.mark.parametrize("reason", ["spot", "disabled"])
async def test_workers_that_cannot_be_stopped_are_terminated(account: Account, reason: str) -> None:
    if reason == "spot":
        spot = {"InstanceMarketOptions": {"MarketType": "spot"}}
        account.file(available_node_types=types(worker=spot))
    else:
        provider = {"type": "aws", "region": "us-west-2", "cache_stopped_nodes": False}
        account.file(provider=provider)
    workers = [i for i in await account.launch() if i.role == "worker"]
    head = account.provider("head-home", on_head=True)
    stop_or_terminate = head.capabilities.stop_or_terminate
    assert stop_or_terminate is not None
    await stop_or_terminate(account.spec, workers)
    assert len(account.cloud.ledger.running()) == 1
    await account.down()


async def test_a_head_launches_workers_with_its_own_resources(account: Account) -> None:
    """It may create none, and does not try."""
    head, *_ = sorted(await account.launch(workers=1), key=lambda i: i.role)
    creating = {"ImportKeyPair", "CreateSecurityGroup", "CreateRole"}
    before = account.cloud.ledger.calls()
    provider = account.provider("head-home", on_head=True)
    (worker,) = await provider.launch(account.spec, [LaunchRequest("worker", "worker", 1, "more")])
    after = account.cloud.ledger.calls()
    assert {name: after[name] for name in creating} == {name: before[name] for name in creating}
    answer = ec2(account).describe_instances(InstanceIds=[head.id, worker.id])
    first, second = (i for r in answer["Reservations"] for i in r["Instances"])
    assert first["KeyName"] == second["KeyName"]
    assert first["SecurityGroups"] == second["SecurityGroups"]
    await account.down()


async def test_user_data_over_16_kb_reaches_the_instance(account: Account) -> None:
    lines = "".join(f"# line {number}\n" for number in range(3000))
    script = f"#!/bin/sh\n{lines}touch /opt/mine\n"
    assert len(script) > 16 * 1024
    account.file(available_node_types=types(head={"UserData": script}))
    (head,) = await account.provider().launch(
        account.spec, [LaunchRequest("head", "head", 1, "long")]
    )
    host = account.cloud.ec2.host(head.id)

    async def ran() -> bool:
        return (await host.run("test -e /opt/mine")).code == 0

    await until(ran, "the script ran")
    await account.down()
