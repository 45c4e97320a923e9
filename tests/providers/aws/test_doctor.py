"""`shoal doctor`: mistakes found before a cent is spent, on an account that has them all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.providers.aws.aws_bed import Bed, events_of
from tests.providers.aws.broken_accounts import Patient, all_at_once, patient_on
from tests.simcloud.calls import ApiError

pytestmark = pytest.mark.simcloud


async def test_a_file_with_nothing_wrong_gets_a_clean_bill(bed: Bed) -> None:
    done = await bed.shoal("doctor c.yaml")
    assert done.code == 0, done.stdout + done.stderr
    assert "nothing was found" in done.stdout
    assert not bed.running()


async def test_twelve_mistakes_are_told_at_once_with_their_lines_and_their_fixes(
    bed: Bed, tmp_path: Path
) -> None:
    patient = Patient(bed.cloud, tmp_path)
    says = all_at_once(patient)
    done = await patient_on(bed, patient, "doctor c.yaml --json")
    assert done.code == 2, done.stderr
    found = json.loads(done.stdout)
    for words in says:
        assert [f for f in found if words in f["what"]], words
    assert len(found) == len(says) == 12, done.stdout
    assert {f["severity"] for f in found} == {"error"}
    assert all(f["fix"] for f in found)
    lines = json.dumps(patient.file, indent=1).splitlines()
    (image,) = [f for f in found if "ami-none" in f["what"]]
    file, _, line = image["location"].rpartition(":")
    assert (file, "ami-none" in lines[int(line) - 1]) == ("c.yaml", True)

    refused = await patient_on(bed, patient, "up c.yaml --yes --json")
    assert refused.code == 2
    events = events_of(refused)
    told = [{**e, "event": ""} for e in events if e["event"] == "finding"]
    assert sorted(told, key=str) == sorted(({**f, "event": ""} for f in found), key=str)
    assert events[-1]["what"] == "12 errors found, nothing was changed"
    assert not bed.running()


async def test_up_goes_on_when_it_may_not_look(bed: Bed) -> None:
    """That something may not be looked at says nothing of whether it would work."""
    denied = ApiError("UnauthorizedOperation", "You are not authorized to perform this operation.")
    bed.cloud.faults.fail_call("DescribeInstanceTypeOfferings", error=denied, times=9)
    events = await bed.up("--min-workers 0")
    (warning,) = [e for e in events if e["event"] == "finding"]
    assert warning["severity"] == "warning"
    assert "DescribeInstanceTypeOfferings" in warning["what"]
    before = bed.cloud.ledger.calls()
    assert (await bed.up("--min-workers 0"))[-1]["event"] == "unchanged"
    asked = set(bed.cloud.ledger.calls() - before)
    assert asked == {"DescribeInstances"}, "a cluster that is there needs no examination"
    await bed.down()
