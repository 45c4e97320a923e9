"""Every mistake is found before anything is created, and its proposed fix, applied word for word,
makes `up` succeed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.providers.aws.aws_bed import Bed
from tests.providers.aws.broken_accounts import MISTAKES, USER_REPORTED, Scenario, run_on_laptop
from tests.providers.aws.provider_account import Account
from tests.providers.fixes import preflight
from tests.simcloud.aws_images import RAY_EXAMPLE_IMAGE
from tests.simcloud.calls import ApiError
from tests.simcloud.faults import Fault

pytestmark = pytest.mark.simcloud


@pytest.mark.parametrize("name", MISTAKES)
async def test_the_proposed_fix_resolves_the_finding(
    account: Account, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = Scenario(tmp_path, cloud=account.cloud)
    MISTAKES[name].apply(scenario)
    (finding,) = await preflight(scenario, monkeypatch)
    assert finding.severity == "error"
    assert MISTAKES[name].message in finding.what
    scenario.apply_fix(finding.fix)
    assert await preflight(scenario, monkeypatch) == []
    assert not account.cloud.ledger.rentals


async def test_the_deprecated_ami_of_rays_example_is_only_a_warning(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = Scenario(tmp_path, cloud=account.cloud)
    scenario.head["ImageId"] = RAY_EXAMPLE_IMAGE
    (finding,) = await preflight(scenario, monkeypatch)
    assert (finding.severity, "is deprecated since" in finding.what) == ("warning", True)
    scenario.worker["node_config"]["ImageId"] = "ami-0123456789abcdef0"
    findings = await preflight(scenario, monkeypatch)
    assert {f.what.partition(" ami-")[0] for f in findings} == {"the AMI", "there is no AMI"}


async def test_a_denied_ecr_login_is_reported_at_the_image(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = Scenario(tmp_path, cloud=account.cloud)
    image = "123456789012.dkr.ecr.us-west-2.amazonaws.com/team/box:1"
    scenario.file["docker"] = {"image": image, "container_name": "box"}
    denied = ApiError("AccessDeniedException", "you may not call ecr:GetAuthorizationToken", 400)
    fault = account.cloud.faults.fail_call("GetAuthorizationToken", error=denied, times=9)
    (finding,) = await preflight(scenario, monkeypatch)
    assert (finding.severity, finding.what) == ("error", "AWS refused GetAuthorizationToken")
    assert "shoal iam-policy" in finding.fix
    line = int(finding.location.rpartition(":")[2])
    assert image in json.dumps(scenario.file, indent=1).splitlines()[line - 1]
    fault.lift()
    assert await preflight(scenario, monkeypatch) == []


async def test_the_dry_run_passes_under_a_policy_that_requires_tags_and_a_real_ami(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`shoal iam-policy` prints such a policy: AWS authorizes each resource of a launch."""
    known = {image["ImageId"] for image in Scenario(tmp_path, cloud=account.cloud).images()}
    denied = ApiError("UnauthorizedOperation", "You are not authorized to perform this operation.")

    def strikes(call: Any, _: Any) -> bool:
        values = set(call.params.values())
        is_real = call.params.get("ImageId") in known and "SubnetId" in call.params
        return call.action == "RunInstances" and not (is_real and {"instance", "volume"} <= values)

    account.cloud.faults.add(Fault(strikes, denied))
    scenario = Scenario(tmp_path, cloud=account.cloud)
    assert await preflight(scenario, monkeypatch) == []


async def test_terms_that_were_not_accepted_are_reported_with_their_own_fix(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terms = ApiError("OptInRequired", "You need to accept terms and subscribe.", 401)
    account.cloud.faults.fail_call("RunInstances", error=terms, times=9)
    (finding,) = await preflight(Scenario(tmp_path, cloud=account.cloud), monkeypatch)
    assert "accept terms and subscribe" in finding.why
    assert "AWS console" in finding.fix


async def test_a_caller_without_iam_permissions_is_told_before_anything_is_created(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    denied = ApiError("AccessDenied", "is not authorized to perform iam:GetInstanceProfile", 403)
    account.cloud.faults.fail_call("GetInstanceProfile", error=denied, times=99)
    scenario = Scenario(tmp_path, cloud=account.cloud)
    (finding,) = await preflight(scenario, monkeypatch)
    assert (finding.severity, finding.what) == ("error", "you may not call GetInstanceProfile")
    scenario.head["IamInstanceProfile"] = {"Name": "theirs"}
    assert await preflight(scenario, monkeypatch) == []
    other = ApiError("UnauthorizedOperation", "You are not authorized to perform this operation.")
    account.cloud.faults.fail_call("CreateSecurityGroup", error=other, times=99)
    (finding,) = await preflight(scenario, monkeypatch)
    assert finding.what == "you may not call CreateSecurityGroup"
    (group, *_) = scenario.client().describe_security_groups()["SecurityGroups"]
    allow_all = {"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
    scenario.client().authorize_security_group_ingress(
        GroupId=group["GroupId"], IpPermissions=[allow_all]
    )
    scenario.head["SecurityGroupIds"] = [group["GroupId"]]
    assert await preflight(scenario, monkeypatch) == [], "what the file names is not created"


@pytest.mark.parametrize(
    "name", [n if n in USER_REPORTED else pytest.param(n, marks=pytest.mark.long) for n in MISTAKES]
)
async def test_up_creates_nothing_until_the_fix_is_applied(
    bed: Bed, name: str, tmp_path: Path
) -> None:
    scenario = Scenario(tmp_path, cloud=bed.cloud)
    await bed.cloud.ec2.warm_up()
    MISTAKES[name].apply(scenario)
    await bed.cloud.ec2.set_leftover_baseline()
    refused = await run_on_laptop(bed, scenario, "up c.yaml --yes --json")
    error = json.loads(refused.stdout.splitlines()[-1])
    assert error["event"] == "error", refused.stdout
    assert MISTAKES[name].message in error["what"]
    assert not bed.cloud.ledger.rentals
    await bed.cloud.assert_nothing_left()
    scenario.apply_fix(error["fix"])
    await bed.cloud.ec2.set_leftover_baseline()
    done = await run_on_laptop(bed, scenario, "up c.yaml --yes --json")
    assert done.code == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["event"] == "ready"
    done = await run_on_laptop(bed, scenario, "down c.yaml --yes")
    assert done.code == 0, done.stderr
    await bed.cloud.assert_nothing_left()
