"""`up` of a head and four workers: what a launcher adds to the time that Ray itself needs.

Ray's own start is bound by the CPUs of this machine, so the figure is the time until all nodes have
joined minus that of a script written by hand. The launchers alternate, on new hosts each time; of
each, the run with the least interference from other programs counts.
"""

from __future__ import annotations

import asyncio

from benchmarks.cluster_launch.bench_cluster import new_hosts, sim_cloud
from benchmarks.cluster_launch.launchers import (
    Launch,
    Launcher,
    by_hand,
    by_hand_with_ray_stop,
    ray_up,
    shoal_up,
)
from benchmarks.cluster_launch.phases import print_phases
from benchmarks.report import report

WORKERS = 4
ROUNDS = 3
TIMEOUT_SECONDS = 240.0
MAX_OVERHEAD_SECONDS = 3.0
MAX_SHARE_OF_RAY = 0.1
LAUNCHERS: dict[str, Launcher] = {
    "by hand": by_hand,
    "shoal up": shoal_up,
    "by hand, with ray stop": by_hand_with_ray_stop,
    "ray up": ray_up,
}


async def main() -> None:
    launches: dict[str, list[Launch]] = {name: [] for name in LAUNCHERS}
    async with sim_cloud() as cloud:
        for _ in range(ROUNDS):
            for name, launcher in LAUNCHERS.items():
                async with new_hosts(cloud, WORKERS) as hosts:
                    launches[name].append(await launcher(hosts, TIMEOUT_SECONDS))
                print(f"{name:<34} {launches[name][-1]}", flush=True)
    best = {name: min(runs, key=lambda run: run.other_cores) for name, runs in launches.items()}
    limit, shoal, with_ray_stop, ray = best.values()
    print_phases(shoal)
    overhead, ray_overhead = shoal.seconds - limit.seconds, ray.seconds - limit.seconds
    print(f"overhead of shoal up: {overhead:.1f} s ({shoal.gcs - limit.gcs:.1f} s to the GCS)")
    print(f"overhead of ray up: {ray_overhead:.1f} s")
    print(f"faster than the script with ray stop: {with_ray_stop.seconds - shoal.seconds:.1f} s")
    report(
        "up",
        value=shoal.seconds,
        unit="s",
        peer=ray.seconds,
        limit=limit.seconds,
        ratio=overhead / ray_overhead,
        bar=f"overhead at most {MAX_OVERHEAD_SECONDS:.0f} s and {MAX_SHARE_OF_RAY:.0%} of Ray's",
        passed=overhead <= min(MAX_OVERHEAD_SECONDS, MAX_SHARE_OF_RAY * ray_overhead),
    )


if __name__ == "__main__":
    asyncio.run(main())
