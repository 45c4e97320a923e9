"""A `node_config` that cannot be passed to EC2 is reported with its place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.providers.aws.preflight import node_config_shapes
from shoal.spec.cluster_spec import ClusterSpec
from tests.providers.aws.broken_accounts import Scenario
from tests.providers.aws.provider_account import Account
from tests.providers.aws.test_preflight_fixes import preflight
from tests.specs import cluster


def with_config(config: dict[str, Any]) -> ClusterSpec:
    spec = cluster()
    worker = replace(spec.node_types["worker"], node_config=config)
    return replace(spec, node_types={**spec.node_types, "worker": worker})


@pytest.mark.parametrize(
    ("config", "what", "key", "fix"),
    [
        (
            {"IamInstanceProfile": "mine"},
            "IamInstanceProfile is a string",
            "IamInstanceProfile",
            "IamInstanceProfile: {Name: mine}",
        ),
        (
            {"IamInstanceProfile": "arn:aws:iam::1:instance-profile/mine"},
            "IamInstanceProfile is a string",
            "IamInstanceProfile",
            "IamInstanceProfile: {Arn: arn:aws:iam::1:instance-profile/mine}",
        ),
        ({"UserData": {"packages": []}}, "UserData", "UserData", "RunInstances"),
        ({"InstanceMarketOptions": "spot"}, "InstanceMarketOptions", "InstanceMarketOptions", ""),
        ({"InstanceTipe": "m5.large"}, "InstanceTipe", "InstanceTipe", "InstanceType"),
        (
            {"BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": "9"}}]},
            "BlockDeviceMappings[0].Ebs.VolumeSize",
            "BlockDeviceMappings",
            "",
        ),
        ({"SubnetIds": "subnet-1"}, "SubnetIds is not a list", "SubnetIds", "[subnet-...]"),
    ],
)
def test_a_config_that_ec2_cannot_read_is_reported_at_its_key(
    config: dict[str, Any], what: str, key: str, fix: str
) -> None:
    (finding,) = node_config_shapes.check_node_configs(with_config(config))
    assert what in finding.what
    assert finding.at[-1] == key
    assert fix in finding.fix


def test_a_valid_config_has_no_findings() -> None:
    config = {"InstanceType": "m5.large", "SubnetIds": ["subnet-1"], "KeyName": None}
    assert node_config_shapes.check_node_configs(with_config(config)) == []


@pytest.mark.simcloud
async def test_doctor_reports_invalid_configs_and_missing_profiles(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = Scenario(tmp_path, cloud=account.cloud)
    scenario.head.update(IamInstanceProfile="theirs", UserData={"a": 1})
    found = {finding.what: finding for finding in await preflight(scenario, monkeypatch)}
    assert set(found) == {
        "IamInstanceProfile is a string",
        "node_config cannot be passed to EC2: UserData",
    }
    del scenario.head["UserData"]
    scenario.apply_fix(found["IamInstanceProfile is a string"].fix)
    scenario.worker["min_workers"] = 1
    scenario.worker["node_config"]["IamInstanceProfile"] = {"Name": "workers"}
    missing = await preflight(scenario, monkeypatch)
    assert {(f.severity, f.what) for f in missing} == {
        ("error", "there is no instance profile theirs"),
        ("error", "there is no instance profile workers"),
    }
    scenario.apply_fix(missing[0].fix)
    assert await preflight(scenario, monkeypatch) == []
