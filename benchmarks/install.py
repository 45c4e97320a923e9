"""`install_ray()` on one machine and on five: the packages are fetched once, whatever their number,
and the machines, which share two cores and a disk here, work side by side."""

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
MOST_TIMES = 2.5
TIMEOUT_SECONDS = 900.0
PROGRAM = """
from shoal import InteractiveCluster
InteractiveCluster("nodes.txt", username="ubuntu", on_event=print).install_ray()
"""


async def main() -> None:
    if reason := why_not():
        sys.exit(f"cannot be measured here: {reason}")
    with tempfile.TemporaryDirectory() as folder:
        version = importlib.metadata.version("ray")
        wheels = fetch_wheels(Path(folder), f"ray[default]=={version}")
        size = sum(wheel.stat().st_size for wheel in wheels) / 1e6
        print(f"Ray {version}: {len(wheels)} packages, {size:.0f} MB")
        await measure(1, wheels)  # nobody is to pay for what is cold
        one, _ = await measure(1, wheels)
        many, most = await measure(MANY, wheels)
    report(
        "install",
        value=many,
        unit="s",
        peer=None,
        limit=one,
        ratio=many / one,
        bar=f"{MANY} machines at most {MOST_TIMES} times one, each package fetched once",
        passed=many <= MOST_TIMES * one and most == 1,
    )


async def measure(machines: int, wheels: Sequence[Path]) -> tuple[float, int]:
    """How long it takes, and how often the package fetched most often was."""
    async with SimCloud() as cloud:
        laptop, *hosts = await asyncio.gather(
            cloud.laptop(), *(cloud.boot() for _ in range(machines))
        )
        index = await PackageIndex.open(cloud)
        index.add(*wheels)
        await index.serves(*hosts)
        await laptop.run("cat > nodes.txt", stdin="".join(f"{h.address}\n" for h in hosts))
        began = time.monotonic()
        done = await laptop.run("python -", stdin=PROGRAM, timeout=TIMEOUT_SECONDS)
        seconds = time.monotonic() - began
        done.require("install_ray()")
        most = max(index.fetched().values())
        print(
            f"{machines} machines: {seconds:.1f} s, each package fetched {most} times", flush=True
        )
        return seconds, most


if __name__ == "__main__":
    asyncio.run(main())
