"""`up` of a head and four workers: what a launcher adds to the time that Ray itself needs.

Ray's own start is bound by this computer's processors, so what counts is the time until all nodes
have joined minus that of a script by hand. All launchers take turns, on new machines each time;
of each, the run counts that other programs disturbed least.
"""

from __future__ import annotations

import asyncio

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
LAUNCHERS: dict[str, Launcher] = {
    "by hand": by_hand,
    "shoal up": shoal_up,
    "by hand, with the file's ray stop": by_the_letter,
    "ray up": ray_up,
}


async def main() -> None:
    launches: dict[str, list[Launch]] = {name: [] for name in LAUNCHERS}
    async with bed() as cloud:
        for _ in range(ROUNDS):
            for name, launcher in LAUNCHERS.items():
                async with new_machines(cloud, WORKERS) as machines:
                    launches[name].append(await launcher(machines, TIMEOUT_SECONDS))
                print(f"{name:<34} {launches[name][-1]}", flush=True)
    best = {name: min(runs, key=lambda run: run.others) for name, runs in launches.items()}
    limit, shoal, letter, ray = best.values()
    print_phases(shoal)
    overhead, rays = shoal.seconds - limit.seconds, ray.seconds - limit.seconds
    print(f"overhead of shoal up {overhead:5.1f} s (of which {shoal.gcs - limit.gcs:.1f} s until")
    print(f"the head's GCS listens), of ray up {rays:.1f} s; against the script with ray stop,")
    print(f"shoal up is {letter.seconds - shoal.seconds:.1f} s quicker")
    report(
        "up",
        value=shoal.seconds,
        unit="s",
        peer=ray.seconds,
        limit=limit.seconds,
        ratio=overhead / rays,
        bar=f"overhead at most {MOST_SECONDS:.0f} s and {MOST_OF_RAYS:.0%} of Ray's",
        passed=overhead <= min(MOST_SECONDS, MOST_OF_RAYS * rays),
    )


if __name__ == "__main__":
    asyncio.run(main())
