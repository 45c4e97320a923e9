"""A cluster that is up already: `up` again with nothing changed, and `exec` on a warm connection,
against Ray's own on the same machines."""

from __future__ import annotations

import asyncio
import statistics
import time

from tests.simcloud.hosts import Host

from benchmarks.launchers.cluster import Machines, bed, new_machines
from benchmarks.launchers.launch import shoal_up
from benchmarks.report import report

WORKERS = 4
ROUNDS = 7
TIMEOUT_SECONDS = 240.0
MOST_UP_SECONDS = 2.0
MOST_EXEC_SECONDS = 0.6
LEAST_SPEEDUP = 5.0


async def main() -> None:
    async with bed() as cloud, new_machines(cloud, WORKERS) as machines:
        ray_exec = await _rays(machines)
        await shoal_up(machines, TIMEOUT_SECONDS)
        path = await machines.write_file(f"shoal-{machines.head.name}")
        up = await _median(machines.laptop, ["shoal", "up", "--yes", path])
        shoal_exec = await _median(machines.laptop, ["shoal", "exec", path, "true"])
    print(f"shoal up, nothing changed  {up:6.2f} s   (at most {MOST_UP_SECONDS} s)")
    print(f"shoal exec true            {shoal_exec:6.2f} s   (at most {MOST_EXEC_SECONDS} s)")
    print(f"ray exec true              {ray_exec:6.2f} s")
    speedup = ray_exec / shoal_exec
    report(
        "reuse",
        value=shoal_exec,
        unit="s",
        peer=ray_exec,
        limit=None,
        ratio=speedup,
        bar=f"up again under {MOST_UP_SECONDS} s, exec true under {MOST_EXEC_SECONDS} s and at "
        f"least {LEAST_SPEEDUP:.0f} times quicker than ray exec",
        passed=up < MOST_UP_SECONDS and shoal_exec < MOST_EXEC_SECONDS and speedup >= LEAST_SPEEDUP,
    )


async def _rays(machines: Machines) -> float:
    """The median of `ray exec true`. Ray uses the head alone, which is all that `exec` needs and
    leaves the computer to it."""
    only_head = Machines(machines.laptop, machines.head, ())
    path = await only_head.write_file(f"ray-{machines.head.name}")
    laptop = machines.laptop
    up = await laptop.run(["ray", "up", "-y", "--no-config-cache", path], timeout=TIMEOUT_SECONDS)
    up.require("ray up")
    median = await _median(laptop, ["ray", "exec", path, "true"])
    down = await laptop.run(["ray", "down", "-y", path], timeout=TIMEOUT_SECONDS)
    down.require("ray down")
    return median


async def _median(laptop: Host, command: list[str]) -> float:
    """The median over some rounds, after one that warms caches and connections."""
    times = []
    for _ in range(ROUNDS + 1):
        began = time.monotonic()
        (await laptop.run(command)).require(" ".join(command))
        times.append(time.monotonic() - began)
    return statistics.median(times[1:])


if __name__ == "__main__":
    asyncio.run(main())
