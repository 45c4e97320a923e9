"""`shoal doctor` on a file and an account with twelve mistakes, where every AWS call takes 100 ms:
how long until all twelve are reported, against the longest chain of dependent calls."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

from tests.providers.aws.aws_bed import Bed
from tests.providers.aws.broken_accounts import Scenario, apply_twelve, run_on_laptop
from tests.simcloud.cloud import SimCloud
from tests.simcloud.fixtures import why_not

from benchmarks.report import report

LATENCY_SECONDS = 0.1
MAX_SECONDS = 5.0
ROUNDS = 3
# Looking up the default images, and then their properties.
LONGEST_CHAIN = 2


async def run_doctor(bed: Bed, scenario: Scenario, expected: list[str]) -> tuple[float, int]:
    """Seconds, and how many of the mistakes were reported."""
    started = time.monotonic()
    result = await run_on_laptop(bed, scenario, "doctor c.yaml --json")
    seconds = time.monotonic() - started
    findings = [finding["what"] for finding in json.loads(result.stdout)]
    reported = sum(any(text in what for what in findings) for text in expected)
    print(f"{reported} of {len(expected)} mistakes after {seconds:.2f} s", flush=True)
    return seconds, reported


async def main() -> None:
    if reason := why_not():
        sys.exit(f"cannot run on this machine: {reason}")
    with tempfile.TemporaryDirectory() as directory:
        async with SimCloud() as cloud:
            bed = Bed(cloud, await cloud.laptop())
            scenario = Scenario(Path(directory), cloud=cloud)
            expected = apply_twelve(scenario)
            cloud.faults.slow_calls(LATENCY_SECONDS)
            runs = [await run_doctor(bed, scenario, expected) for _ in range(ROUNDS)]
            calls = sum(cloud.ledger.calls().values())
    seconds = min(seconds for seconds, _ in runs)
    print(f"{calls} AWS calls in {ROUNDS} runs and their preparation")
    report(
        "doctor",
        value=seconds,
        unit="s",
        peer=None,
        limit=LONGEST_CHAIN * LATENCY_SECONDS,
        ratio=seconds / (LONGEST_CHAIN * LATENCY_SECONDS),
        bar=f"all {len(expected)} mistakes in one run, in less than {MAX_SECONDS:.0f} s",
        passed=seconds < MAX_SECONDS
        and all(reported == len(expected) == 12 for _, reported in runs),
    )


if __name__ == "__main__":
    asyncio.run(main())
