"""What a container that is already there costs `up`, a node: two equal clusters, one in containers
and one without, brought back and looked at in turns. Ray's own start is the same in both and takes
many times longer than what is measured, so a stand-in takes its place."""

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
MOST_SECONDS_A_NODE = 1.0
SETUP = ["mkdir -p ~/results", "date > ~/results/since"]


async def main() -> None:
    if reason := why_not() or container_runtimes.why_not("docker"):
        sys.exit(f"cannot be measured here: {reason}")
    async with SimCloud() as cloud:
        clusters = await _clusters(cloud)
        for name, bed in clusters.items():
            (await bed.shoal(f"up {name}.yaml --yes")).require("shoal up")
        back = await _in_turns(clusters, stop_first=True)
        again = await _in_turns(clusters, stop_first=False)
    worst = 0.0
    for what, (plain, housed) in {"brought back": back, "nothing to do": again}.items():
        a_node = (housed - plain) / NODES
        worst = max(worst, a_node)
        print(
            f"{what:<14} without {plain:5.2f} s   with {housed:5.2f} s   "
            f"{housed - plain:+5.2f} s in all, {a_node:+6.3f} s a node",
            flush=True,
        )
    report(
        "containers",
        value=worst,
        unit="s",
        peer=None,
        limit=MOST_SECONDS_A_NODE,
        ratio=worst / MOST_SECONDS_A_NODE,
        bar=f"a container that is there costs up less than {MOST_SECONDS_A_NODE:.0f} s a node "
        f"over the same {NODES} nodes without",
        passed=worst < MOST_SECONDS_A_NODE,
    )


async def _clusters(cloud: SimCloud) -> dict[str, Bed]:
    """A cluster without containers and one with, on machines of their own, each with its file."""
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
        own = {"docker": docker} if name == "with" else {}
        await bed.write(
            f"{name}.yaml", cluster_name=name, setup_commands=SETUP, **QUICK_START, **own
        )
    return clusters


async def _in_turns(clusters: dict[str, Bed], *, stop_first: bool) -> tuple[float, float]:
    """The median of `up` without and with, after a round that warms caches and connections."""
    times: dict[str, list[float]] = {name: [] for name in clusters}
    for _ in range(ROUNDS + 1):
        for name, bed in clusters.items():
            if stop_first:
                (await bed.shoal(f"stop {name}.yaml --yes")).require("shoal stop")
            began = time.monotonic()
            (await bed.shoal(f"up {name}.yaml --yes")).require("shoal up")
            times[name].append(time.monotonic() - began)
    plain, housed = (statistics.median(rest) for _, *rest in times.values())
    return plain, housed


if __name__ == "__main__":
    asyncio.run(main())
