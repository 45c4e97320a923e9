"""A host of a training is cut off: how long until the other workers make a step again.

Two simulated hosts with real Ray and SSH; one that loses its power is as silent as one that is cut
off. Needs root on Linux, as the tests on simulated hosts do.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import statistics
import time
from pathlib import Path

from tests.polling import until
from tests.simcloud.hosts import Host
from tests.train.job.training_bed import two_hosts

from benchmarks.report import report
from benchmarks.train_bench import timed

ROUNDS = int(os.environ.get("ROUNDS", "20"))
BAR_P95 = 4.0
_STEPS = 10
_CODE = Path(timed.__file__).read_text()
_TIMES = "/home/ubuntu/times"


def main() -> None:
    pauses = sorted(asyncio.run(_measure()))
    p50, p95 = statistics.median(pauses), pauses[min(len(pauses) - 1, int(0.95 * len(pauses)))]
    print(f"a host is cut off, n={len(pauses)}: p50 {p50:.2f} s, p95 {p95:.2f} s", flush=True)
    report(
        "train_hosts",
        value=p95,
        unit="s",
        peer=None,
        limit=None,
        ratio=p95 / BAR_P95,
        bar="a host that is powered off or cut off stalls the others for p95 4 s",
        passed=p95 <= BAR_P95,
    )


async def _measure() -> list[float]:
    pauses = []
    async with two_hosts() as (bed, training):
        (await bed.laptop.run("cat > work/code.py", stdin=_CODE)).require("writing the script")
        arguments = ("elastic", _TIMES, "4096", "64", "0")
        job = await training.start("-m", "2", "--objective", "size", "--", *arguments)
        for number in range(ROUNDS):
            await training.await_workers(job, 2)
            begun = time.monotonic()
            await _await_steps(bed.head, begun)
            cut = time.monotonic()
            async with bed.workers[0].cut_off():
                await training.await_workers(job, 1, within=60)
            moments = _moments(bed.head, begun)
            gaps = [(b - a, b) for a, b in itertools.pairwise(moments)]
            usual = statistics.median(gap for gap, end in gaps if end <= cut)
            pauses.append(max(gap for gap, end in gaps if end > cut) - usual)
            print(f"{number + 1}: {pauses[-1]:.2f} s", flush=True)
        await training.stop(job)
    return pauses


async def _await_steps(head: Host, since: float) -> None:
    await until(lambda: len(_moments(head, since)) > _STEPS, "steps on the head")


def _moments(head: Host, since: float) -> list[float]:
    """When the worker on the head has made its steps."""
    files = (head.root() / "home/ubuntu").glob("times-*")
    moments = [float(t) for path in files for t in path.read_text().split("\n")[:-1]]
    return sorted(moment for moment in moments if moment > since)


if __name__ == "__main__":
    main()
