"""A cluster that is already up: `up` with nothing changed, `status`, and `exec` on an open
connection, against Ray's on the same hosts, alternating."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Mapping

from tests.simcloud.hosts import Host

from benchmarks.cluster_launch.bench_cluster import BenchHosts, new_hosts, sim_cloud
from benchmarks.cluster_launch.launchers import shoal_up
from benchmarks.report import report

WORKERS = 4
ROUNDS = 9
TIMEOUT_SECONDS = 240.0
MAX_UP_SECONDS = 2.0
MAX_EXEC_SECONDS = 0.6
MAX_STATUS_SECONDS = 0.8
MIN_SPEEDUP = 5.0


async def main() -> None:
    async with sim_cloud() as cloud, new_hosts(cloud, WORKERS) as hosts:
        ray_file = await _ray_cluster_file(hosts)
        await shoal_up(hosts, TIMEOUT_SECONDS)
        name = f"shoal-{hosts.head.name}"
        shoal_file = await hosts.write_file(name)
        commands = {
            "ray exec FILE true": ["ray", "exec", ray_file, "true"],
            "shoal exec FILE true": ["shoal", "exec", shoal_file, "true"],
            "shoal exec NAME true": ["shoal", "exec", name, "true"],
            "shoal status NAME": ["shoal", "status", name],
            "shoal up, nothing changed": ["shoal", "up", "--yes", shoal_file],
        }
        ray, by_file, by_name, status, up = await _medians(hosts.laptop, commands)
    bars = {
        f"up again under {MAX_UP_SECONDS} s": up < MAX_UP_SECONDS,
        f"status under {MAX_STATUS_SECONDS} s": status < MAX_STATUS_SECONDS,
        f"exec true under {MAX_EXEC_SECONDS} s": max(by_file, by_name) < MAX_EXEC_SECONDS,
        f"exec true by name at least {MIN_SPEEDUP:.0f} times faster than ray exec: "
        f"{ray / by_name:.1f}": ray / by_name >= MIN_SPEEDUP,
    }
    for bar, is_met in bars.items():
        print(f"{'met' if is_met else 'MISSED'}: {bar}", flush=True)
    report(
        "reuse",
        value=by_name,
        unit="s",
        peer=ray,
        limit=None,
        ratio=ray / by_name,
        bar=f"up again under {MAX_UP_SECONDS} s; status under {MAX_STATUS_SECONDS} s; exec true "
        f"under {MAX_EXEC_SECONDS} s, and by name at least {MIN_SPEEDUP:.0f} times faster than "
        "ray exec",
        passed=all(bars.values()),
    )


async def _ray_cluster_file(hosts: BenchHosts) -> str:
    """A cluster file whose head is up according to Ray's launcher, with no Ray running on it:
    `exec` needs none, and Shoal uses the hosts afterwards."""
    only_head = BenchHosts(hosts.laptop, hosts.head, ())
    path = await only_head.write_file(f"ray-{hosts.head.name}")
    command = ["ray", "up", "-y", "--no-config-cache", path]
    (await hosts.laptop.run(command, timeout=TIMEOUT_SECONDS)).require("ray up")
    (await hosts.head.run("ray stop --force", user="ubuntu")).require("ray stop")
    return path


async def _medians(laptop: Host, commands: Mapping[str, list[str]]) -> list[float]:
    """The median of each command in seconds, after a round that warms caches and connections."""
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(ROUNDS + 1):
        for name, command in commands.items():
            started = time.monotonic()
            (await laptop.run(command)).require(name)
            times[name].append(time.monotonic() - started)
    medians = []
    for name, (_, *rest) in times.items():
        medians.append(statistics.median(rest))
        print(f"{name:<26} median {medians[-1]:5.2f} s   best {min(rest):5.2f} s", flush=True)
    return medians


if __name__ == "__main__":
    asyncio.run(main())
