"""`shoal doctor`: an account and a file with many mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.providers.aws.aws_bed import Bed, events_of
from tests.providers.aws.broken_accounts import Scenario, apply_twelve, run_on_laptop
from tests.simcloud.calls import ApiError

pytestmark = pytest.mark.simcloud


async def test_a_valid_file_has_no_findings(bed: Bed) -> None:
    done = await bed.shoal("doctor c.yaml")
    assert done.code == 0, done.stdout + done.stderr
    assert "no problems found" in done.stdout
    assert not bed.running()


async def test_twelve_mistakes_are_reported_at_once_with_lines_and_fixes(
    bed: Bed, tmp_path: Path
) -> None:
    scenario = Scenario(tmp_path, cloud=bed.cloud)
    messages = apply_twelve(scenario)
    done = await run_on_laptop(bed, scenario, "doctor c.yaml --json")
    assert done.code == 2, done.stderr
    findings = json.loads(done.stdout)
    for message in messages:
        assert [f for f in findings if message in f["what"]], message
    assert len(findings) == len(messages) == 12, done.stdout
    assert {f["severity"] for f in findings} == {"error"}
    assert all(f["fix"] for f in findings)
    lines = json.dumps(scenario.file, indent=1).splitlines()
    (image,) = [f for f in findings if "ami-none" in f["what"]]
    file, _, line = image["location"].rpartition(":")
    assert (file, "ami-none" in lines[int(line) - 1]) == ("c.yaml", True)

    refused = await run_on_laptop(bed, scenario, "up c.yaml --yes --json")
    assert refused.code == 2
    events = events_of(refused)
    reported = [{**e, "event": ""} for e in events if e["event"] == "finding"]
    assert sorted(reported, key=str) == sorted(({**f, "event": ""} for f in findings), key=str)
    assert events[-1]["what"] == "12 problems found, nothing was changed"
    assert not bed.running()


async def test_up_continues_when_a_lookup_is_denied(bed: Bed) -> None:
    """A denied lookup does not mean that a launch would fail."""
    denied = ApiError("UnauthorizedOperation", "You are not authorized to perform this operation.")
    bed.cloud.faults.fail_call("DescribeInstanceTypeOfferings", error=denied, times=9)
    events = await bed.up("--min-workers 0")
    (warning,) = [e for e in events if e["event"] == "finding"]
    assert warning["severity"] == "warning"
    assert "DescribeInstanceTypeOfferings" in warning["what"]
    before = bed.cloud.ledger.calls()
    assert (await bed.up("--min-workers 0"))[-1]["event"] == "unchanged"
    calls = set(bed.cloud.ledger.calls() - before)
    assert calls == {"DescribeInstances"}, "an existing cluster needs no preflight"
    await bed.down()
