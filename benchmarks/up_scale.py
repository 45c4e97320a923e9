"""`up` of sixteen workers: Shoal's overhead over a script written by hand must not grow in
proportion to the number of nodes.

Seventeen Ray nodes cannot start at once on two cores: Ray kills a node whose agents need more than
15 s. So a stand-in is started that takes as long as Ray on an idle machine. Of three runs each, the
fastest counts.
"""

from __future__ import annotations

import asyncio

from tests.simcloud.cloud import SimCloud

from benchmarks.cluster_launch.bench_cluster import STAND_IN, new_hosts, sim_cloud
from benchmarks.cluster_launch.launchers import by_hand, shoal_up
from benchmarks.cluster_launch.phases import print_phases
from benchmarks.report import report

FEW, MANY = 4, 16
ROUNDS = 3
TIMEOUT_SECONDS = 120.0
MAX_GROWTH = 2.0
# A smaller overhead with few workers is noise, and so would be twice that.
MIN_OVERHEAD_SECONDS = 1.5


async def main() -> None:
    async with sim_cloud() as cloud:
        few_limit, few = await _measure(cloud, FEW)
        many_limit, many = await _measure(cloud, MANY)
    few_overhead, many_overhead = few - few_limit, many - many_limit
    print(f"overhead with {FEW:2} workers: {few_overhead:5.1f} s")
    print(f"overhead with {MANY:2} workers: {many_overhead:5.1f} s")
    allowed = MAX_GROWTH * max(few_overhead, MIN_OVERHEAD_SECONDS)
    report(
        "up_scale",
        value=many,
        unit="s",
        peer=None,
        limit=many_limit,
        ratio=many_overhead / max(few_overhead, MIN_OVERHEAD_SECONDS),
        bar=f"overhead with {MANY} workers at most {MAX_GROWTH:.0f} times that with {FEW}, "
        f"which counts as at least {MIN_OVERHEAD_SECONDS} s",
        passed=many_overhead <= allowed,
    )


async def _measure(cloud: SimCloud, workers: int) -> tuple[float, float]:
    """The seconds of the script, and of Shoal."""
    script_runs, shoal_runs = [], []
    for _ in range(ROUNDS):
        async with new_hosts(cloud, workers, STAND_IN) as hosts:
            script_runs.append(await by_hand(hosts, TIMEOUT_SECONDS))
        print(f"{workers:2} workers by hand  {script_runs[-1]}", flush=True)
        async with new_hosts(cloud, workers, STAND_IN) as hosts:
            shoal_runs.append(await shoal_up(hosts, TIMEOUT_SECONDS))
        print(f"{workers:2} workers shoal up {shoal_runs[-1]}", flush=True)
    limit, shoal = (min(runs, key=lambda run: run.seconds) for runs in (script_runs, shoal_runs))
    print_phases(shoal)
    return limit.seconds, shoal.seconds


if __name__ == "__main__":
    asyncio.run(main())
