"""`install_ray()` on one host and on five: packages are fetched once, however many hosts there are,
and the hosts, which share two cores and a disk here, install in parallel."""

from __future__ import annotations

import asyncio
import importlib.metadata
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.ops.package_index import PackageIndex, fetch_wheels
from tests.simcloud.cloud import SimCloud
from tests.simcloud.fixtures import why_not

from benchmarks.report import report

MANY = 5
MAX_RATIO = 2.5
TIMEOUT_SECONDS = 900.0
PROGRAM = """
from shoal import InteractiveCluster
InteractiveCluster("nodes.txt", username="ubuntu", on_event=print).install_ray()
"""


async def main() -> None:
    if reason := why_not():
        sys.exit(f"cannot run on this machine: {reason}")
    with tempfile.TemporaryDirectory() as folder:
        version = importlib.metadata.version("ray")
        wheels = fetch_wheels(Path(folder), f"ray[default]=={version}")
        size = sum(wheel.stat().st_size for wheel in wheels) / 1e6
        print(f"Ray {version}: {len(wheels)} packages, {size:.0f} MB")
        await measure(1, wheels)  # warm the caches
        one, _ = await measure(1, wheels)
        many, max_fetches = await measure(MANY, wheels)
    report(
        "install",
        value=many,
        unit="s",
        peer=None,
        limit=one,
        ratio=many / one,
        bar=f"{MANY} hosts at most {MAX_RATIO} times as long as one, each package fetched once",
        passed=many <= MAX_RATIO * one and max_fetches == 1,
    )


async def measure(host_count: int, wheels: Sequence[Path]) -> tuple[float, int]:
    """The seconds it takes, and the highest number of fetches of any package."""
    async with SimCloud() as cloud:
        laptop, *hosts = await asyncio.gather(
            cloud.laptop(), *(cloud.boot() for _ in range(host_count))
        )
        index = await PackageIndex.open(cloud)
        index.add(*wheels)
        await index.configure(*hosts)
        await laptop.run("cat > nodes.txt", stdin="".join(f"{h.address}\n" for h in hosts))
        started = time.monotonic()
        result = await laptop.run("python -", stdin=PROGRAM, timeout=TIMEOUT_SECONDS)
        seconds = time.monotonic() - started
        result.require("install_ray()")
        max_fetches = max(index.downloads().values())
        print(
            f"{host_count} hosts: {seconds:.1f} s, each package fetched {max_fetches} times",
            flush=True,
        )
        return seconds, max_fetches


if __name__ == "__main__":
    asyncio.run(main())
