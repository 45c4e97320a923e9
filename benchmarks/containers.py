"""What an existing container adds to `up`, per node: two equal clusters, one with containers and
one without, alternately restarted and left unchanged. A stand-in replaces Ray, whose start is the
same in both and takes many times longer than what is measured."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time

from tests.bootstrap.containers import container_runtimes
from tests.bootstrap.containers.container_bed import DOCKER, ROOT_IMAGE
from tests.providers.local.ssh_bed import QUICK_START, Bed
from tests.simcloud.cloud import SimCloud
from tests.simcloud.fixtures import why_not

from benchmarks.report import report

NODES = 4
ROUNDS = 7
MAX_SECONDS_PER_NODE = 1.0
SETUP = ["mkdir -p ~/results", "date > ~/results/since"]


async def main() -> None:
    if reason := why_not() or container_runtimes.unavailable_reason("docker"):
        sys.exit(f"cannot run on this machine: {reason}")
    async with SimCloud() as cloud:
        clusters = await _write_clusters(cloud)
        for name, bed in clusters.items():
            (await bed.shoal(f"up {name}.yaml --yes")).require("shoal up")
        after_stop = await _alternating_medians(clusters, stop_first=True)
        unchanged = await _alternating_medians(clusters, stop_first=False)
    worst = 0.0
    for case, (without, in_containers) in {
        "after stop": after_stop,
        "nothing to do": unchanged,
    }.items():
        per_node = (in_containers - without) / NODES
        worst = max(worst, per_node)
        print(
            f"{case:<14} without {without:5.2f} s   with {in_containers:5.2f} s   "
            f"{in_containers - without:+5.2f} s in total, {per_node:+6.3f} s per node",
            flush=True,
        )
    report(
        "containers",
        value=worst,
        unit="s",
        peer=None,
        limit=MAX_SECONDS_PER_NODE,
        ratio=worst / MAX_SECONDS_PER_NODE,
        bar=f"an existing container adds less than {MAX_SECONDS_PER_NODE:.0f} s per node to up, "
        f"compared with the same {NODES} nodes without containers",
        passed=worst < MAX_SECONDS_PER_NODE,
    )


async def _write_clusters(cloud: SimCloud) -> dict[str, Bed]:
    """A cluster without containers and one with, on separate hosts, each with its file."""
    laptop = await cloud.laptop()
    clusters = {}
    for name in ("without", "with"):
        hosts = await asyncio.gather(*(cloud.boot() for _ in range(NODES)))
        clusters[name] = Bed(cloud, laptop, list(hosts))
    for host in clusters["with"].hosts:
        await container_runtimes.start(host)
        await container_runtimes.make_image(host, ROOT_IMAGE)
    docker = {**DOCKER, "head_image": ROOT_IMAGE}
    for name, bed in clusters.items():
        docker_section = {"docker": docker} if name == "with" else {}
        await bed.write(
            f"{name}.yaml", cluster_name=name, setup_commands=SETUP, **QUICK_START, **docker_section
        )
    return clusters


async def _alternating_medians(
    clusters: dict[str, Bed], *, stop_first: bool
) -> tuple[float, float]:
    """The median of `up` without and with containers, after a round that warms caches and
    connections."""
    times: dict[str, list[float]] = {name: [] for name in clusters}
    for _ in range(ROUNDS + 1):
        for name, bed in clusters.items():
            if stop_first:
                (await bed.shoal(f"stop {name}.yaml --yes")).require("shoal stop")
            started = time.monotonic()
            (await bed.shoal(f"up {name}.yaml --yes")).require("shoal up")
            times[name].append(time.monotonic() - started)
    without, in_containers = (statistics.median(rest) for _, *rest in times.values())
    return without, in_containers


if __name__ == "__main__":
    asyncio.run(main())
