"""`up` of a head and four workers: what a launcher adds to the same steps over plain SSH.

Ray's own start is bound by the CPUs of this machine, so a figure is the time of a launcher minus
that of a script written by hand: until the command has returned, and beside it until all nodes have
joined. The launchers alternate, on new hosts each time. The hosts have plain or slow dotfiles, and
Ray on the PATH or not.

    python -m benchmarks.up [--rounds N] [VARIANT...]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from dataclasses import dataclass

from tests.simcloud.cloud import SimCloud

from benchmarks.cluster_launch.bench_cluster import (
    RAY,
    RAY_BY_PATH,
    Program,
    new_hosts,
    sim_cloud,
)
from benchmarks.cluster_launch.launchers import Launch, Launcher, by_hand, ray_up, shoal_up
from benchmarks.cluster_launch.phases import print_phases
from benchmarks.report import report

WORKERS = 4
TIMEOUT_SECONDS = 240.0
MAX_OVERHEAD_SECONDS = 3.0
MAX_SHARE_OF_RAY = 0.1
LAUNCHERS: dict[str, Launcher] = {"by hand": by_hand, "shoal up": shoal_up, "ray up": ray_up}


@dataclass(frozen=True)
class Variant:
    """What the hosts are like."""

    program: Program
    slow_dotfiles: bool


VARIANTS = {
    "plain": Variant(RAY, slow_dotfiles=False),
    "by-path": Variant(RAY_BY_PATH, slow_dotfiles=False),
    "slow": Variant(RAY, slow_dotfiles=True),
    "slow-by-path": Variant(RAY_BY_PATH, slow_dotfiles=True),
}


@dataclass(frozen=True)
class Overhead:
    """The medians of one variant, in seconds."""

    limit: float
    shoal: float
    ray: float

    @property
    def seconds(self) -> float:
        return self.shoal - self.limit

    @property
    def share_of_ray(self) -> float:
        return self.seconds / (self.ray - self.limit)

    @property
    def is_met(self) -> bool:
        return self.seconds <= MAX_OVERHEAD_SECONDS and self.share_of_ray <= MAX_SHARE_OF_RAY


async def main(names: list[str], rounds: int) -> None:
    async with sim_cloud() as cloud:
        overheads = [await _measure(cloud, name, rounds) for name in names]
    worst = max(overheads, key=lambda overhead: overhead.share_of_ray)
    report(
        "up",
        value=worst.shoal,
        unit="s",
        peer=worst.ray,
        limit=worst.limit,
        ratio=worst.share_of_ray,
        bar=f"until the command returns, at most {MAX_OVERHEAD_SECONDS:.0f} s over by hand and "
        f"{MAX_SHARE_OF_RAY:.0%} of Ray's overhead, on every kind of host",
        passed=all(overhead.is_met for overhead in overheads),
    )


async def _measure(cloud: SimCloud, name: str, rounds: int) -> Overhead:
    variant = VARIANTS[name]
    launches: dict[str, list[Launch]] = {launcher: [] for launcher in LAUNCHERS}
    print(f"-- {name}", flush=True)
    for _ in range(rounds):
        for launcher, launch in LAUNCHERS.items():
            async with new_hosts(
                cloud, WORKERS, variant.program, slow_dotfiles=variant.slow_dotfiles
            ) as hosts:
                launches[launcher].append(await launch(hosts, TIMEOUT_SECONDS))
            print(f"{launcher:<9} {launches[launcher][-1]}", flush=True)
    print_phases(launches["shoal up"][-1])
    joined = Overhead(*(_median([run.seconds for run in runs]) for runs in launches.values()))
    waited = Overhead(*(_median([run.waited for run in runs]) for runs in launches.values()))
    for title, overhead in {"nodes have joined": joined, "command has returned": waited}.items():
        ray_overhead = overhead.ray - overhead.limit
        print(
            f"{name}: until the {title}: by hand {overhead.limit:.1f} s, shoal up "
            f"+{overhead.seconds:.1f} s, ray up +{ray_overhead:.1f} s",
            flush=True,
        )
    _print_bar(
        f"at most {MAX_OVERHEAD_SECONDS:.0f} s over by hand until the command has returned",
        f"{waited.seconds:.1f} s",
        is_met=waited.seconds <= MAX_OVERHEAD_SECONDS,
    )
    _print_bar(
        f"at most {MAX_SHARE_OF_RAY:.0%} of Ray's overhead",
        f"{waited.share_of_ray:.0%}",
        is_met=waited.share_of_ray <= MAX_SHARE_OF_RAY,
    )
    return waited


def _median(seconds: list[float]) -> float:
    return statistics.median(seconds)


def _print_bar(bar: str, measured: str, *, is_met: bool) -> None:
    print(f"{'met' if is_met else 'MISSED'}: {bar}: {measured}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("variants", nargs="*", choices=[[], *VARIANTS], metavar="VARIANT")
    parser.add_argument("--rounds", type=int, default=1)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.variants or list(VARIANTS), arguments.rounds))
