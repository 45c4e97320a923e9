"""`up` of sixteen workers: what Shoal adds to the time of a script by hand must not grow with the
number of machines as the work does.

Seventeen Ray nodes cannot start at once on two processors: Ray ends a node whose agents need more
than 15 s. So what is started stands in for Ray, and takes as long as Ray does on an idle machine.
Of three runs each, the quickest counts.
"""

from __future__ import annotations

import asyncio

from tests.simcloud.cloud import SimCloud

from benchmarks.launchers.cluster import STAND_IN, bed, new_machines
from benchmarks.launchers.launch import by_hand, shoal_up
from benchmarks.launchers.phases import print_phases
from benchmarks.report import report

FEW, MANY = 4, 16
ROUNDS = 3
TIMEOUT_SECONDS = 120.0
MOST_GROWTH = 2.0
# Below this an overhead of few machines is noise, and twice that would be, too.
LEAST_SECONDS = 1.5


async def main() -> None:
    async with bed() as cloud:
        few_limit, few = await _pair(cloud, FEW)
        many_limit, many = await _pair(cloud, MANY)
    few_overhead, many_overhead = few - few_limit, many - many_limit
    print(f"overhead with {FEW:2} workers: {few_overhead:5.1f} s")
    print(f"overhead with {MANY:2} workers: {many_overhead:5.1f} s")
    allowed = MOST_GROWTH * max(few_overhead, LEAST_SECONDS)
    report(
        "up_scale",
        value=many,
        unit="s",
        peer=None,
        limit=many_limit,
        ratio=many_overhead / max(few_overhead, LEAST_SECONDS),
        bar=f"overhead with {MANY} workers at most {MOST_GROWTH:.0f} times that with {FEW}, "
        f"which counts as {LEAST_SECONDS} s at least",
        passed=many_overhead <= allowed,
    )


async def _pair(cloud: SimCloud, workers: int) -> tuple[float, float]:
    """The script's seconds and Shoal's."""
    scripts, ours = [], []
    for _ in range(ROUNDS):
        async with new_machines(cloud, workers, STAND_IN) as machines:
            scripts.append(await by_hand(machines, TIMEOUT_SECONDS))
        print(f"{workers:2} workers by hand  {scripts[-1]}", flush=True)
        async with new_machines(cloud, workers, STAND_IN) as machines:
            ours.append(await shoal_up(machines, TIMEOUT_SECONDS))
        print(f"{workers:2} workers shoal up {ours[-1]}", flush=True)
    limit, shoal = (min(runs, key=lambda run: run.seconds) for runs in (scripts, ours))
    print_phases(shoal)
    return limit.seconds, shoal.seconds


if __name__ == "__main__":
    asyncio.run(main())
