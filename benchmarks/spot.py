"""Machines that their cloud takes back: how soon after a notice the node is drained, how soon after
that another is asked for, and how soon a machine whose lease is over has ended.

Real Ray on spot instances of the test bed. The times of drains are the controller's own, from its
journal; those of notices, launch calls and ends are the cloud's. The limit of the first is the
pause after which an instance looks at its metadata again.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

from tests.polling import until
from tests.providers.aws.aws_bed import Bed
from tests.providers.aws.spot_bed import head_of, instances, ready_workers, spot_cluster
from tests.simcloud.fixtures import why_not

from benchmarks.report import report

WORKERS = 2
ROUNDS = 5
LEASE_SECONDS = 30.0
POLL_SECONDS = 2.0
MOST_TO_DRAIN = 5.0
MOST_TO_LAUNCH = 2.0
MOST_TO_END = 60.0
TIMEOUT_SECONDS = 180.0
CONTROL = "home/ubuntu/.shoal/controller"


async def main() -> None:
    if reason := why_not():
        sys.exit(f"cannot be measured here: {reason}")
    async with spot_cluster(WORKERS, lease=f"{LEASE_SECONDS:.0f}s") as bed:
        rounds = [await _notice(bed) for _ in range(ROUNDS)]
        ends = await _lapse(bed)
    drained, launched = (max(column) for column in zip(*rounds, strict=True))
    print(f"notice to drain: {drained:.2f} s at worst of {ROUNDS}")
    print(f"drain to launch call: {launched:.2f} s at worst of {ROUNDS}")
    print(f"end of a lease to end of the machine: {max(ends):.1f} s at worst of {len(ends)}")
    report(
        "spot",
        value=drained,
        unit="s",
        peer=None,
        limit=POLL_SECONDS,
        ratio=drained / POLL_SECONDS,
        bar=f"a notice leads to the drain within {MOST_TO_DRAIN:.0f} s, the drain to the "
        f"replacement's launch call within {MOST_TO_LAUNCH:.0f} s, the end of a lease to that of "
        f"its machine within {MOST_TO_END:.0f} s",
        passed=drained <= MOST_TO_DRAIN and launched <= MOST_TO_LAUNCH and max(ends) <= MOST_TO_END,
    )


async def _notice(bed: Bed) -> tuple[float, float]:
    """Seconds from a notice to the drain, and from the drain to the launch call."""
    await until(
        lambda: len(ready_workers(bed)) == WORKERS, "all are ready", timeout=TIMEOUT_SECONDS
    )
    await asyncio.sleep(random.uniform(0.0, POLL_SECONDS))  # at no particular moment of the watch
    victim = min(ready_workers(bed))
    told = time.time()
    await bed.cloud.ec2.spot_notice(victim, 60)

    def drains() -> list[float]:
        """When Ray had agreed to keep new work away."""
        return [
            float(entry["at"])
            for entry in _journal(bed)
            if entry["kind"] == "decision" and entry["action"] == "drained" and entry["at"] > told
        ]

    def launches() -> list[float]:
        entries = bed.cloud.ledger.entries
        return [e.at for e in entries if e.call.action == "RunInstances" and e.at > told]

    await until(drains, "it is drained", timeout=TIMEOUT_SECONDS)
    await until(launches, "another is asked for", timeout=TIMEOUT_SECONDS)
    to_drain, to_launch = drains()[0] - told, launches()[0] - drains()[0]
    print(f"drained after {to_drain:.2f} s, another asked for {to_launch:.2f} s later", flush=True)
    return to_drain, to_launch


async def _lapse(bed: Bed) -> list[float]:
    """Seconds from the ends of the workers' leases to their own."""
    await until(
        lambda: len(ready_workers(bed)) == WORKERS, "all are ready", timeout=TIMEOUT_SECONDS
    )
    workers = sorted(instances(bed, "worker"))

    def promised_at(id: str) -> float:
        path = bed.cloud.ec2.host(id).root() / "home/ubuntu/.shoal/lease"
        return path.stat().st_mtime if path.exists() else 0.0

    await until(lambda: all(map(promised_at, workers)), "all have a promise", timeout=60)
    head = head_of(bed)
    for who in ("supervisor", "controller"):
        pid = (head.root() / CONTROL / f"{who}.lock").read_text()
        (await head.run(["kill", f"-{signal.SIGSTOP:d}", pid])).require("stopping it")
    await asyncio.sleep(1.0)  # an answer may be on its way
    over = {id: promised_at(id) + LEASE_SECONDS for id in workers}
    rentals = bed.cloud.ledger.rentals
    await until(
        lambda: all(rentals[id].ended for id in workers), "all have ended", timeout=TIMEOUT_SECONDS
    )
    return [(rentals[id].ended or 0.0) - over[id] for id in workers]


def _journal(bed: Bed) -> Iterator[dict[str, Any]]:
    for line in (head_of(bed).root() / CONTROL / "journal.jsonl").read_text().splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            return  # it is just being written


if __name__ == "__main__":
    asyncio.run(main())
