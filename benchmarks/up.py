"""`up` of a head and four workers: what a launcher adds to the time that Ray itself needs.

Ray's own start is bound by this computer's processors, so what counts is the time until all nodes
have joined minus that of a script by hand. Pairs are measured back to back, on new machines each.
"""

from __future__ import annotations

import asyncio
import statistics

from tests.simcloud.cloud import SimCloud

from benchmarks.launchers.cluster import bed, new_machines
from benchmarks.launchers.launch import (
    Launch,
    Launcher,
    by_hand,
    by_the_letter,
    ray_up,
    shoal_up,
)
from benchmarks.launchers.phases import print_phases
from benchmarks.report import report

WORKERS = 4
ROUNDS = 3
TIMEOUT_SECONDS = 240.0
MOST_SECONDS = 3.0
MOST_OF_RAYS = 0.1


async def main() -> None:
    async with bed() as cloud:
        pairs = []
        for _ in range(ROUNDS):
            limit = await _launch(cloud, "by hand", by_hand)
            pairs.append((limit, await _launch(cloud, "shoal up", shoal_up)))
        letter = await _launch(cloud, "by hand, with the file's ray stop", by_the_letter)
        ray = await _launch(cloud, "ray up", ray_up)
    print_phases(pairs[-1][1])
    limit_seconds = statistics.median(limit.seconds for limit, _ in pairs)
    seconds = statistics.median(shoal.seconds for _, shoal in pairs)
    overhead = statistics.median(shoal.seconds - limit.seconds for limit, shoal in pairs)
    rays_overhead = ray.seconds - limit_seconds
    print(f"overhead of shoal up: {overhead:5.1f} s")
    print(f"overhead of ray up:   {rays_overhead:5.1f} s")
    print(f"against the script with ray stop, shoal up is {letter.seconds - seconds:.1f} s quicker")
    report(
        "up",
        value=seconds,
        unit="s",
        peer=ray.seconds,
        limit=limit_seconds,
        ratio=overhead / rays_overhead,
        bar=f"overhead at most {MOST_SECONDS:.0f} s and {MOST_OF_RAYS:.0%} of Ray's",
        passed=overhead <= min(MOST_SECONDS, MOST_OF_RAYS * rays_overhead),
    )


async def _launch(cloud: SimCloud, name: str, launcher: Launcher) -> Launch:
    async with new_machines(cloud, WORKERS) as machines:
        launch = await launcher(machines, TIMEOUT_SECONDS)
    print(f"{name:<34} {launch}", flush=True)
    return launch


if __name__ == "__main__":
    asyncio.run(main())
