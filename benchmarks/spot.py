"""Spot interruptions and leases: how soon after an interruption notice the node is drained, how
soon after that a replacement is launched, and how soon an instance with an expired lease is
terminated.

Real Ray on spot instances of the test bed. The times of drains come from the controller's journal;
those of notices, launch calls and terminations from the simulated cloud. The limit of the first is
the interval at which an instance polls its metadata.
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
from tests.simcloud.hosts import Host

from benchmarks.report import report
from shoal.controller.state import Decision

WORKERS = 2
ROUNDS = 5
LEASE_SECONDS = 30.0
POLL_SECONDS = 2.0
MAX_TO_DRAIN = 5.0
MAX_TO_LAUNCH = 2.0
MAX_TO_TERMINATE = 60.0
TIMEOUT_SECONDS = 180.0
CONTROL = "home/ubuntu/.shoal/controller"


async def main() -> None:
    if reason := why_not():
        sys.exit(f"cannot run on this machine: {reason}")
    async with spot_cluster(WORKERS, lease=f"{LEASE_SECONDS:.0f}s") as bed:
        rounds = [await _interrupt(bed) for _ in range(ROUNDS)]
        terminations = await _expire_leases(bed)
    drained, launched = (max(column) for column in zip(*rounds, strict=True))
    print(f"notice to drain: {drained:.2f} s at worst of {ROUNDS}")
    print(f"drain to launch call: {launched:.2f} s at worst of {ROUNDS}")
    print(f"lease expiry to termination: {max(terminations):.1f} s at worst of {len(terminations)}")
    report(
        "spot",
        value=drained,
        unit="s",
        peer=None,
        limit=POLL_SECONDS,
        ratio=drained / POLL_SECONDS,
        bar=f"drain within {MAX_TO_DRAIN:.0f} s of the interruption notice, launch call for the "
        f"replacement within {MAX_TO_LAUNCH:.0f} s of the drain, termination within "
        f"{MAX_TO_TERMINATE:.0f} s of lease expiry",
        passed=drained <= MAX_TO_DRAIN
        and launched <= MAX_TO_LAUNCH
        and max(terminations) <= MAX_TO_TERMINATE,
    )


async def _interrupt(bed: Bed) -> tuple[float, float]:
    """Seconds from a notice to the drain, and from the drain to the launch call."""
    await until(
        lambda: len(ready_workers(bed)) == WORKERS, "all workers are ready", timeout=TIMEOUT_SECONDS
    )
    # At a random time in the agent's polling interval.
    await asyncio.sleep(random.uniform(0.0, POLL_SECONDS))
    instance_id = min(ready_workers(bed))
    notified = time.time()
    await bed.cloud.ec2.spot_notice(instance_id, 60)

    def drains() -> list[float]:
        return drained_at(head_of(bed), notified)

    def launches() -> list[float]:
        entries = bed.cloud.ledger.entries
        return [e.at for e in entries if e.call.action == "RunInstances" and e.at > notified]

    await until(drains, "the node is drained", timeout=TIMEOUT_SECONDS)
    await until(launches, "a replacement is launched", timeout=TIMEOUT_SECONDS)
    to_drain, to_launch = drains()[0] - notified, launches()[0] - drains()[0]
    print(
        f"drained after {to_drain:.2f} s, replacement launched {to_launch:.2f} s later", flush=True
    )
    return to_drain, to_launch


async def _expire_leases(bed: Bed) -> list[float]:
    """Seconds from the expiry of the workers' leases to their termination."""
    await until(
        lambda: len(ready_workers(bed)) == WORKERS, "all workers are ready", timeout=TIMEOUT_SECONDS
    )
    workers = sorted(instances(bed, "worker"))

    def lease_renewed_at(id: str) -> float:
        path = bed.cloud.ec2.host(id).root() / "home/ubuntu/.shoal/lease"
        return path.stat().st_mtime if path.exists() else 0.0

    await until(lambda: all(map(lease_renewed_at, workers)), "all have a lease", timeout=60)
    head = head_of(bed)
    for process in ("supervisor", "controller"):
        pid = (head.root() / CONTROL / f"{process}.lock").read_text()
        (await head.run(["kill", f"-{signal.SIGSTOP:d}", pid])).require("stopping the process")
    await asyncio.sleep(1.0)  # a lease renewal may be in progress
    lease_end = {id: lease_renewed_at(id) + LEASE_SECONDS for id in workers}
    instance_usage = bed.cloud.ledger.rentals
    await until(
        lambda: all(instance_usage[id].ended for id in workers),
        "all instances are terminated",
        timeout=TIMEOUT_SECONDS,
    )
    return [(instance_usage[id].ended or 0.0) - lease_end[id] for id in workers]


def drained_at(head: Host, since: float) -> list[float]:
    """When Ray accepted the drains of the controller on this head."""
    return [
        float(entry["at"])
        for entry in _journal(head)
        if entry["kind"] == Decision.kind and entry["action"] == "drained" and entry["at"] > since
    ]


def _journal(head: Host) -> Iterator[dict[str, Any]]:
    for line in (head.root() / CONTROL / "journal.jsonl").read_text().splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            return  # the last line is incomplete


if __name__ == "__main__":
    asyncio.run(main())
