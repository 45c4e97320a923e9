"""A cluster that is up already: `up` again with nothing changed, and `exec` on a warm connection,
against Ray's own on the same machines, taken in turns."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Mapping

from tests.simcloud.hosts import Host

from benchmarks.launchers.cluster import Machines, bed, new_machines
from benchmarks.launchers.launch import shoal_up
from benchmarks.report import report

WORKERS = 4
ROUNDS = 9
TIMEOUT_SECONDS = 240.0
MOST_UP_SECONDS = 2.0
MOST_EXEC_SECONDS = 0.6
LEAST_SPEEDUP = 5.0


async def main() -> None:
    async with bed() as cloud, new_machines(cloud, WORKERS) as machines:
        rays = await _known_to_ray(machines)
        await shoal_up(machines, TIMEOUT_SECONDS)
        name = f"shoal-{machines.head.name}"
        ours = await machines.write_file(name)
        commands = {
            "ray exec FILE true": ["ray", "exec", rays, "true"],
            "shoal exec FILE true": ["shoal", "exec", ours, "true"],
            "shoal exec NAME true": ["shoal", "exec", name, "true"],
            "shoal up, nothing changed": ["shoal", "up", "--yes", ours],
        }
        ray, by_file, by_name, up = await _medians(machines.laptop, commands)
    report(
        "reuse",
        value=by_name,
        unit="s",
        peer=ray,
        limit=None,
        ratio=ray / by_name,
        bar=f"up again under {MOST_UP_SECONDS} s; exec true under {MOST_EXEC_SECONDS} s, and by "
        f"name at least {LEAST_SPEEDUP:.0f} times quicker than ray exec",
        passed=up < MOST_UP_SECONDS
        and max(by_file, by_name) < MOST_EXEC_SECONDS
        and ray / by_name >= LEAST_SPEEDUP,
    )


async def _known_to_ray(machines: Machines) -> str:
    """A cluster file whose head is up as far as Ray's launcher knows, with no Ray running there:
    `exec` needs none, and the machines are to be Shoal's."""
    only_head = Machines(machines.laptop, machines.head, ())
    path = await only_head.write_file(f"ray-{machines.head.name}")
    command = ["ray", "up", "-y", "--no-config-cache", path]
    (await machines.laptop.run(command, timeout=TIMEOUT_SECONDS)).require("ray up")
    (await machines.head.run("ray stop --force", user="ubuntu")).require("ray stop")
    return path


async def _medians(laptop: Host, commands: Mapping[str, list[str]]) -> list[float]:
    """The median of each, in seconds, after a round that warms caches and connections."""
    times: dict[str, list[float]] = {what: [] for what in commands}
    for _ in range(ROUNDS + 1):
        for what, command in commands.items():
            began = time.monotonic()
            (await laptop.run(command)).require(what)
            times[what].append(time.monotonic() - began)
    medians = []
    for what, (_, *rest) in times.items():
        medians.append(statistics.median(rest))
        print(f"{what:<26} median {medians[-1]:5.2f} s   best {min(rest):5.2f} s", flush=True)
    return medians


if __name__ == "__main__":
    asyncio.run(main())
