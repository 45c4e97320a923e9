"""Checks that cannot be certain warn, and any check can be skipped by its name."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import boto3
import pytest

from shoal.core.errors import ConfigError
from shoal.core.events import Event, PreflightFinding
from shoal.ops.context import Context
from shoal.ops.preview import show_plan
from shoal.providers.model import LaunchRequest
from shoal.providers.vm import caller_address
from tests.providers.aws.broken_accounts import MISTAKES, Scenario
from tests.providers.aws.provider_account import Account
from tests.providers.aws.test_preflight_fixes import preflight
from tests.simcloud.calls import ApiError

pytestmark = pytest.mark.simcloud

UBUNTU = "/aws/service/canonical/ubuntu/server/22.04/stable/current/amd64/hvm/ebs-gp2/ami-id"
NOWHERE = "http://127.0.0.1:1/checkip"


def own_group(scenario: Scenario, source: str = "0.0.0.0/0") -> None:
    """Give the head a security group of the file's own that allows SSH from a range."""
    client = scenario.client()
    (vpc,) = client.describe_vpcs()["Vpcs"]
    group = client.create_security_group(GroupName="own", Description="own", VpcId=vpc["VpcId"])
    ssh = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": source}]}
    client.authorize_security_group_ingress(GroupId=group["GroupId"], IpPermissions=[ssh])
    for node_type in scenario.file["available_node_types"].values():
        node_type["node_config"]["SecurityGroupIds"] = [group["GroupId"]]


def ssh_sources(account: Account) -> set[str]:
    """The ranges from which the cluster's group allows SSH."""
    client = boto3.client("ec2", **account.cloud.ec2.client_options())
    filters = [{"Name": "tag-key", "Values": ["shoal-cluster"]}]
    (group,) = client.describe_security_groups(Filters=filters)["SecurityGroups"]
    rules = [rule for rule in group["IpPermissions"] if rule.get("FromPort") == 22]
    return {r["CidrIp"] for rule in rules for r in rule["IpRanges"]} | {
        r["CidrIpv6"] for rule in rules for r in rule["Ipv6Ranges"]
    }


async def launch_head(account: Account) -> None:
    request = LaunchRequest("head", "head", 1, "t")
    await account.provider().launch(account.spec, [request])


async def test_an_ami_from_an_ssm_parameter_is_checked_and_launched(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = Scenario(tmp_path, cloud=account.cloud)
    scenario.head["ImageId"] = f"resolve:ssm:{UBUNTU}"
    assert await preflight(scenario, monkeypatch) == []
    arm = UBUNTU.replace("amd64", "arm64")
    scenario.head["ImageId"] = f"resolve:ssm:{arm}"
    (finding,) = await preflight(scenario, monkeypatch)
    assert "is for arm64, but m5.large is x86_64" in finding.what
    scenario.head["ImageId"] = f"resolve:ssm:{UBUNTU}"
    denied = ApiError("AccessDeniedException", "you may not call ssm:GetParameters", 400)
    account.cloud.faults.fail_call("GetParameters", error=denied, times=9)
    findings = await preflight(scenario, monkeypatch)
    assert {finding.severity for finding in findings} == {"warning"}
    account.cloud.faults.lift_all()
    scenario.head["ImageId"] = "resolve:ssm:/ours/ami"
    (finding,) = await preflight(scenario, monkeypatch)
    assert finding.severity == "warning"
    assert finding.what == "could not look up the AMI in the SSM parameter /ours/ami"
    scenario.head["ImageId"] = f"resolve:ssm:{UBUNTU}"

    account.file(available_node_types=scenario.file["available_node_types"])
    await launch_head(account)
    client = boto3.client("ec2", **account.cloud.ec2.client_options())
    (reservation,) = client.describe_instances()["Reservations"]
    ami = scenario.client("ssm").get_parameter(Name=UBUNTU)["Parameter"]["Value"]
    assert reservation["Instances"][0]["ImageId"] == ami
    await account.down()


async def test_the_callers_address_may_be_unknown_if_all_groups_are_the_files_own(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_CHECKIP_URL", NOWHERE)
    scenario = Scenario(tmp_path, cloud=account.cloud)
    (finding,) = await preflight(scenario, monkeypatch)
    assert finding.what == "could not determine your public IP address"
    own_group(scenario)
    assert await preflight(scenario, monkeypatch) == []


async def test_an_address_seen_through_a_proxy_is_not_certain(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SSH does not use the proxy: only a direct answer is certain."""
    scenario = Scenario(tmp_path, cloud=account.cloud)
    own_group(scenario, "192.0.2.1/32")
    monkeypatch.setenv("no_proxy", account.cloud.ec2.local_url.removeprefix("http://"))
    with serving("198.51.100.9") as proxy, serving("192.0.2.1") as direct:
        monkeypatch.setenv("http_proxy", proxy)
        monkeypatch.setenv("SHOAL_CHECKIP_URL", direct)
        assert await preflight(scenario, monkeypatch) == []
        monkeypatch.setenv("SHOAL_CHECKIP_URL", NOWHERE)
        findings = await preflight(scenario, monkeypatch)
    assert {finding.severity for finding in findings} == {"warning"}
    assert all("allows SSH from 198.51.100.9/32" in finding.what for finding in findings)
    assert all("through an HTTP proxy" in finding.why for finding in findings)


async def test_the_errors_of_a_skipped_check_are_warnings(account: Account, tmp_path: Path) -> None:
    scenario = Scenario(tmp_path, cloud=account.cloud)
    MISTAKES["small root"].apply(scenario)
    account.file(available_node_types=scenario.file["available_node_types"])
    events: list[Event] = []
    ctx = Context(emit=events.append, home=tmp_path / "shoal")
    with pytest.raises(ConfigError) as caught:
        await show_plan(ctx, account.spec)
    assert "or if the check is wrong: shoal up CLUSTER --skip-checks root-volume" in (
        caught.value.fix
    )
    plan = await show_plan(ctx, account.spec, skip_checks=["root-volume"])
    assert not plan.is_empty
    (finding,) = [event for event in events if isinstance(event, PreflightFinding)]
    assert (finding.severity, finding.check) == ("warning", "root-volume")


async def test_ssh_to_private_addresses_is_allowed_from_the_vpc_and_the_vpn(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caller_address, "_source_address", lambda destination: "10.8.0.5")
    monkeypatch.setenv("SHOAL_CHECKIP_URL", NOWHERE)
    account.file(provider={"type": "aws", "region": "us-west-2", "use_internal_ips": True})
    await launch_head(account)
    assert ssh_sources(account) == {"172.31.0.0/16", "10.8.0.5/32"}
    await account.down()


async def test_ssh_through_a_proxy_command_is_allowed_from_the_vpc(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    auth = {"ssh_user": "ubuntu", "ssh_proxy_command": "ssh -W %h:%p bastion"}
    scenario = Scenario(tmp_path, cloud=account.cloud)
    scenario.file["auth"] = auth
    (finding,) = await preflight(scenario, monkeypatch)
    assert (finding.severity, finding.check) == ("warning", "ssh-access")
    assert "shoal: {ssh_from:" in finding.fix
    monkeypatch.setenv("SHOAL_CHECKIP_URL", NOWHERE)
    account.file(auth=auth)
    await launch_head(account)
    assert ssh_sources(account) == {"172.31.0.0/16"}
    await account.down()


async def test_ssh_can_be_allowed_from_ipv6_ranges(account: Account) -> None:
    account.file(shoal={"ssh_from": ["2001:db8::/48", "192.0.2.0/24"]})
    await launch_head(account)
    assert ssh_sources(account) == {"2001:db8::/48", "192.0.2.0/24"}
    await launch_head(account)
    assert ssh_sources(account) == {"2001:db8::/48", "192.0.2.0/24"}
    await account.down()


@contextmanager
def serving(text: str) -> Iterator[str]:
    """A web server, or a proxy, that responds to every request with a text."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
