"""`shoal doctor` on a file and an account with twelve mistakes, where every AWS call takes 100 ms:
how long until all twelve are told, against the longest chain of calls that need each other."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

from tests.providers.aws.aws_bed import Bed
from tests.providers.aws.broken_accounts import Patient, all_at_once, patient_on
from tests.simcloud.cloud import SimCloud
from tests.simcloud.fixtures import why_not

from benchmarks.report import report

LATENCY_SECONDS = 0.1
MOST_SECONDS = 5.0
ROUNDS = 3
# Which images there are by default, and then what they are.
LONGEST_CHAIN = 2


async def measured(bed: Bed, patient: Patient, says: list[str]) -> tuple[float, int]:
    """Seconds, and how many of the mistakes were told."""
    began = time.monotonic()
    done = await patient_on(bed, patient, "doctor c.yaml --json")
    seconds = time.monotonic() - began
    found = [one["what"] for one in json.loads(done.stdout)]
    told = sum(any(words in what for what in found) for words in says)
    print(f"{told} of {len(says)} mistakes after {seconds:.2f} s", flush=True)
    return seconds, told


async def main() -> None:
    if reason := why_not():
        sys.exit(f"cannot be measured here: {reason}")
    with tempfile.TemporaryDirectory() as directory:
        async with SimCloud() as cloud:
            bed = Bed(cloud, await cloud.laptop())
            patient = Patient(cloud, Path(directory))
            says = all_at_once(patient)
            cloud.faults.slow_calls(LATENCY_SECONDS)
            runs = [await measured(bed, patient, says) for _ in range(ROUNDS)]
            calls = sum(cloud.ledger.calls().values())
    seconds = min(seconds for seconds, _ in runs)
    print(f"{calls} AWS calls in all {ROUNDS} runs and their preparation")
    report(
        "doctor",
        value=seconds,
        unit="s",
        peer=None,
        limit=LONGEST_CHAIN * LATENCY_SECONDS,
        ratio=seconds / (LONGEST_CHAIN * LATENCY_SECONDS),
        bar=f"all {len(says)} mistakes in one run, in less than {MOST_SECONDS:.0f} s",
        passed=seconds < MOST_SECONDS and all(told == len(says) == 12 for _, told in runs),
    )


if __name__ == "__main__":
    asyncio.run(main())
