"""The controller: from a task becoming pending to the launch call, and what an idle loop costs.

The first is measured on real Ray (an embedded cluster whose workers never finish their setup, so
that only the decision is timed). The second runs the real loop, reading Ray's own messages for
100 and for 10,000 nodes, each in a process of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.report import report

ROUNDS = 20
MOST_SECONDS = 1.5
IDLE_SECONDS = 20.0
BARS = {100: (0.01, 150), 10_000: (0.10, 1000)}
SHOAL = str(Path(sys.executable).parent / "shoal")

DRIVER = """
import ray, sys, time
ray.init(log_to_driver=False, logging_level="ERROR")
for line in sys.stdin:
    task = ray.remote(lambda: None).options(num_cpus=0, resources={line.strip(): 1})
    began = time.time()
    keep = task.remote()
    print(began, flush=True)
"""


def main() -> None:
    waits = sorted(_pending_to_launch())
    p50, p95 = statistics.median(waits), waits[int(0.95 * (len(waits) - 1) + 0.5)]
    print(f"pending to launch call, {ROUNDS} rounds: median {p50:.2f} s, p95 {p95:.2f} s")
    passed = p95 <= MOST_SECONDS
    for nodes, (most_share, most_mb) in BARS.items():
        share, megabytes = _idle(nodes)
        print(f"idle at {nodes:,} nodes: {share:.2%} of a core, {megabytes:.0f} MB")
        passed = passed and share <= most_share and megabytes <= most_mb
    report(
        "controller",
        value=p95,
        unit="s",
        peer=None,
        limit=MOST_SECONDS,
        ratio=MOST_SECONDS / p95,
        bar="pending to launch within 1.5 s at the 95th percentile; idle under 1% of a core and "
        "150 MB at 100 nodes, under 10% of a core at 10,000",
        passed=passed,
    )


def _pending_to_launch() -> list[float]:
    types = "\n".join(f"  t{n}: {{resources: {{r{n}: 1}}, max_workers: 1}}" for n in range(ROUNDS))
    yaml = (
        f"cluster_name: bench\nprovider: {{type: embedded}}\nmax_workers: {ROUNDS}\n"
        "upscaling_speed: 1000\nworker_setup_commands: [sleep 3600]\nhead_node_type: head\n"
        f"available_node_types:\n  head: {{resources: {{CPU: 1}}}}\n{types}\n"
    )
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="shoal") as home:
        env = {**os.environ, "SHOAL_HOME": home}
        (Path(home) / "c.yaml").write_text(yaml)
        (Path(home) / "driver.py").write_text(DRIVER)
        quiet = {"env": env, "stderr": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
        try:
            subprocess.run([SHOAL, "up", f"{home}/c.yaml", "--yes"], check=True, **quiet)  # type: ignore[call-overload]
            return _rounds(Path(home), env)
        finally:
            subprocess.run([SHOAL, "down", "--all", "--yes"], **quiet)  # type: ignore[call-overload]


def _rounds(home: Path, env: dict[str, str]) -> list[float]:
    command = [SHOAL, "exec", "bench", f"python {home}/driver.py"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, text=True) as driver:
        assert driver.stdin is not None and driver.stdout is not None
        waits = []
        for number in range(ROUNDS):
            time.sleep(random.uniform(0.5, 2.0))  # at no particular moment of the loop
            driver.stdin.write(f"r{number}\n")
            driver.stdin.flush()
            began = float(driver.stdout.readline())
            waits.append(_launched_at(home, f"t{number}") - began)
        driver.stdin.close()  # the driver ends with its input
    return waits


def _launched_at(home: Path, node_type: str) -> float:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for journal in home.glob("e/*/.shoal/controller/journal.jsonl"):
            for line in journal.read_text().splitlines():
                entry = json.loads(line) if line.endswith("}") else {}
                if entry.get("kind") == "intent" and entry["node_type"] == node_type:
                    return float(entry["at"])
        time.sleep(0.05)
    raise SystemExit(f"nothing was launched for {node_type}")


def _idle(nodes: int) -> tuple[float, float]:
    command = [sys.executable, "-m", "benchmarks.controller", "idle", str(nodes)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    share, megabytes = map(float, done.stdout.split())
    return share, megabytes


async def _idle_loop(nodes: int) -> None:
    """Run the loop over a cluster that does not change, and print what that takes."""
    from benchmarks.still_life import StillLife

    with tempfile.TemporaryDirectory() as directory:
        controller = StillLife(nodes).controller(Path(directory))
        running = asyncio.ensure_future(controller.run())
        await asyncio.sleep(15.0)  # the first turn adopts every node, which is not idling
        began, cpu = time.monotonic(), time.process_time()
        await asyncio.sleep(IDLE_SECONDS)
        share = (time.process_time() - cpu) / (time.monotonic() - began)
        running.cancel()
        await asyncio.wait([running])
    print(share, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


if __name__ == "__main__":
    if sys.argv[1:2] == ["idle"]:
        asyncio.run(_idle_loop(int(sys.argv[2])))
    else:
        main()
