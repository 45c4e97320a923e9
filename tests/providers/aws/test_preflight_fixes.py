"""Every mistake that the doctor knows is found, nothing is made as long as it is there, and the fix
that is proposed, done word for word, makes `up` succeed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shoal import spec
from shoal.core.events import PreflightFinding
from shoal.ops.context import Context
from shoal.ops.preflight import diagnose
from tests.providers.aws.aws_bed import Bed
from tests.providers.aws.broken_accounts import AILMENTS, SEEDS, Patient, patient_on
from tests.providers.aws.provider_account import Account
from tests.simcloud.calls import ApiError
from tests.simcloud.faults import Fault

pytestmark = pytest.mark.simcloud


async def doctor(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> list[PreflightFinding]:
    """What the doctor says, in this process."""
    for name, text in patient.home.items():
        path = patient.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o600)
    for name, value in patient.environment.items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    path = patient.directory / "c.yaml"
    path.write_text(json.dumps(patient.file, indent=1))
    ctx = Context(emit=lambda event: None, home=patient.directory / "shoal")
    return await diagnose(ctx, spec.load(path))


@pytest.mark.parametrize("name", AILMENTS)
async def test_what_the_doctor_says_heals(
    account: Account, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = Patient(account.cloud, tmp_path)
    AILMENTS[name].breaks(patient)
    (found,) = await doctor(patient, monkeypatch)
    assert found.severity == "error"
    assert AILMENTS[name].says in found.what
    patient.follow(found.fix)
    assert await doctor(patient, monkeypatch) == []
    assert not account.cloud.ledger.rentals


async def test_a_registry_of_aws_that_does_not_let_us_in_is_told(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = Patient(account.cloud, tmp_path)
    image = "123456789012.dkr.ecr.us-west-2.amazonaws.com/team/box:1"
    patient.file["docker"] = {"image": image, "container_name": "box"}
    denied = ApiError("AccessDeniedException", "you may not call ecr:GetAuthorizationToken", 400)
    fault = account.cloud.faults.fail_call("GetAuthorizationToken", error=denied, times=9)
    (found,) = await doctor(patient, monkeypatch)
    assert (found.severity, found.what) == ("error", "AWS refused GetAuthorizationToken")
    assert "shoal iam-policy" in found.fix
    line = int(found.location.rpartition(":")[2])
    assert image in json.dumps(patient.file, indent=1).splitlines()[line - 1]
    fault.lift()
    assert await doctor(patient, monkeypatch) == []


async def test_a_policy_that_asks_for_our_tags_and_a_real_image_is_enough(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a one is what `shoal iam-policy` prints: AWS judges a launch by all that it touches."""
    known = {image["ImageId"] for image in Patient(account.cloud, tmp_path).images()}
    denied = ApiError("UnauthorizedOperation", "You are not authorized to perform this operation.")

    def strikes(call: Any, _: Any) -> bool:
        values = set(call.params.values())
        touches = call.params.get("ImageId") in known and "SubnetId" in call.params
        return call.action == "RunInstances" and not (touches and {"instance", "volume"} <= values)

    account.cloud.faults.add(Fault(strikes, denied))
    patient = Patient(account.cloud, tmp_path)
    assert await doctor(patient, monkeypatch) == []


async def test_terms_that_nobody_accepted_are_told_in_awss_words_and_with_their_own_fix(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terms = ApiError("OptInRequired", "You need to accept terms and subscribe.", 401)
    account.cloud.faults.fail_call("RunInstances", error=terms, times=9)
    (found,) = await doctor(Patient(account.cloud, tmp_path), monkeypatch)
    assert "accept terms and subscribe" in found.why
    assert "AWS console" in found.fix


async def test_who_may_not_make_the_heads_role_is_told_before_anything_is_made(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    denied = ApiError("AccessDenied", "is not authorized to perform iam:GetInstanceProfile", 403)
    account.cloud.faults.fail_call("GetInstanceProfile", error=denied, times=99)
    patient = Patient(account.cloud, tmp_path)
    (found,) = await doctor(patient, monkeypatch)
    assert (found.severity, found.what) == ("error", "you may not call GetInstanceProfile")
    patient.head["IamInstanceProfile"] = {"Name": "theirs"}
    assert await doctor(patient, monkeypatch) == []
    other = ApiError("UnauthorizedOperation", "You are not authorized to perform this operation.")
    account.cloud.faults.fail_call("CreateSecurityGroup", error=other, times=99)
    (found,) = await doctor(patient, monkeypatch)
    assert found.what == "you may not call CreateSecurityGroup"
    (group, *_) = patient.client().describe_security_groups()["SecurityGroups"]
    opened = {"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
    patient.client().authorize_security_group_ingress(
        GroupId=group["GroupId"], IpPermissions=[opened]
    )
    patient.head["SecurityGroupIds"] = [group["GroupId"]]
    assert await doctor(patient, monkeypatch) == [], "what the file names need not be made"


@pytest.mark.parametrize(
    "name", [n if n in SEEDS else pytest.param(n, marks=pytest.mark.long) for n in AILMENTS]
)
async def test_up_stops_before_anything_is_made_and_succeeds_when_healed(
    bed: Bed, name: str, tmp_path: Path
) -> None:
    patient = Patient(bed.cloud, tmp_path)
    await bed.cloud.ec2.warm_up()
    AILMENTS[name].breaks(patient)
    await bed.cloud.ec2.disown_what_is_there()
    refused = await patient_on(bed, patient, "up c.yaml --yes --json")
    error = json.loads(refused.stdout.splitlines()[-1])
    assert error["event"] == "error", refused.stdout
    assert AILMENTS[name].says in error["what"]
    assert not bed.cloud.ledger.rentals
    await bed.cloud.assert_nothing_left()
    patient.follow(error["fix"])
    await bed.cloud.ec2.disown_what_is_there()
    done = await patient_on(bed, patient, "up c.yaml --yes --json")
    assert done.code == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["event"] == "ready"
    done = await patient_on(bed, patient, "down c.yaml --yes")
    assert done.code == 0, done.stderr
    await bed.cloud.assert_nothing_left()
