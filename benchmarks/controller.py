"""The controller: how fast it launches, how soon work runs, how fast it restarts after a kill, and
what an idle loop costs.

Launching is measured with real Ray (an embedded cluster whose workers never finish their setup, so
that only the decision is timed), and then with Ray's own autoscaler, as shipped, on its own head on
the same machine. The idle loop reads Ray's messages for 100 and for 10,000 nodes, each in its own
process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.report import report
from shoal.controller.state import LaunchIntent, NodeUpdated

ROUNDS = 20
NODES = 5
KILLS = 5
MAX_LAUNCH_SECONDS = 1.5
MAX_ABOVE_START_SECONDS = 1.0
MAX_RESTART_SECONDS = 5.0
IDLE_SECONDS = 20.0
IDLE_BARS = {100: (0.01, 150), 10_000: (0.10, 1000)}
SHOAL = str(Path(sys.executable).parent / "shoal")
DRIVER = Path(__file__).parent / "controller_bench" / "driver.py"


def main() -> None:
    with _home() as home:
        shoal = _pending_to_launch(home)
    with _home() as home:
        ray = _pending_to_launch_by_ray(home)
    p95, ray_p95 = _p95(shoal), _p95(ray)
    print(f"pending to launch call, {ROUNDS} rounds: median {statistics.median(shoal):.2f} s, "
          f"p95 {p95:.2f} s; Ray: median {statistics.median(ray):.2f} s, "
          f"p95 {ray_p95:.2f} s")  # fmt: skip
    with _home() as home:
        above, restart_s = _pending_to_running(home)
    print(f"pending to running above the node's own ray start: median {above:.2f} s")
    print(f"running again after SIGKILL: {restart_s:.2f} s at worst, of {KILLS}")
    passed = (
        p95 <= MAX_LAUNCH_SECONDS
        and above <= MAX_ABOVE_START_SECONDS
        and restart_s <= MAX_RESTART_SECONDS
    )
    for nodes, (max_share, max_mb) in IDLE_BARS.items():
        share, megabytes = _idle(nodes)
        print(f"idle at {nodes:,} nodes: {share:.2%} of a core, {megabytes:.0f} MB")
        passed = passed and share <= max_share and megabytes <= max_mb
    report(
        "controller",
        value=p95,
        unit="s",
        peer=ray_p95,
        limit=MAX_LAUNCH_SECONDS,
        ratio=ray_p95 / p95,
        bar="pending to launch within 1.5 s at the 95th percentile; pending to running at most 1 s "
        "above the node's own ray start; running again within 5 s after SIGKILL; idle under 1% "
        "of a core and 150 MB at 100 nodes, under 10% of a core at 10,000",
        passed=passed,
    )


def _pending_to_launch(home: Path) -> list[float]:
    with _cluster(home, ROUNDS, "worker_setup_commands: [sleep 3600]\n") as env:
        command = [SHOAL, "exec", "bench", f"python {home}/driver.py"]
        return _rounds(command, env, lambda number: _launched_at(home, f"t{number}"))


def _pending_to_launch_by_ray(home: Path) -> list[float]:
    from benchmarks.controller_bench.ray_autoscaler import launched_at, ray_with_autoscaler

    with ray_with_autoscaler(home, ROUNDS) as env:
        command = [sys.executable, f"{home}/driver.py"]
        return _rounds(command, env, lambda number: launched_at(home, f"t{number}"))


def _rounds(
    command: list[str], env: dict[str, str], launched: Callable[[int], float]
) -> list[float]:
    waits = []
    with _driver(command, env) as submit:
        for number in range(ROUNDS):
            time.sleep(random.uniform(0.5, 5.5))  # at a random time in either loop
            started, _ = submit(f"r{number}")
            waits.append(launched(number) - started)
    return waits


def _pending_to_running(home: Path) -> tuple[float, float]:
    """How much longer a task waits than its node's Ray takes to start, and how long the cluster has
    no controller after a kill."""
    with _cluster(home, NODES, "") as env:
        above = []
        with _driver([SHOAL, "exec", "bench", f"python {home}/driver.py wait"], env) as submit:
            for number in range(NODES):
                started, running = submit(f"r{number}")
                above.append(running - started - _start_seconds(home, f"t{number}"))
        restart_s = max(_restart_seconds(home) for _ in range(KILLS))
    return statistics.median(above), restart_s


def _start_seconds(home: Path, node_type: str) -> float:
    """How long the node's own `ray start` took, from the controller's journal."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        nodes = [e["node"] for e in _journal(home) if e["kind"] == NodeUpdated.kind]
        at = {n["phase"]: n["since"] for n in nodes if n["node_type"] == node_type}
        if "ready" in at:
            return float(at["ready"] - at["starting"])
        time.sleep(0.05)
    raise SystemExit(f"no node of type {node_type} became ready")


def _restart_seconds(home: Path) -> float:
    """Kill the controller, and wait for the state file of the next one."""
    (control,) = home.glob("e/*/.shoal/controller")

    def controller_pid() -> int:
        with contextlib.suppress(ValueError):
            return int(json.loads((control / "state.json").read_text())["pid"])
        return 0

    killed_pid = controller_pid()
    started = time.monotonic()
    os.kill(killed_pid, signal.SIGKILL)
    while controller_pid() in (killed_pid, 0):
        if time.monotonic() - started > 60:
            raise SystemExit("the controller did not come back")
        time.sleep(0.02)
    return time.monotonic() - started


@contextlib.contextmanager
def _home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="shoal") as home:
        (Path(home) / "driver.py").write_text(DRIVER.read_text())
        yield Path(home)


@contextlib.contextmanager
def _cluster(home: Path, types: int, more: str) -> Iterator[dict[str, str]]:
    """A head, and node types with one unit each of a resource that no other type has."""
    # With a CPU, since Ray starts as many worker processes on a node as it has CPUs.
    node_types = [
        f"  t{n}: {{resources: {{CPU: 1, r{n}: 1}}, max_workers: 1}}" for n in range(types)
    ]
    (home / "c.yaml").write_text(
        f"cluster_name: bench\nprovider: {{type: embedded}}\nmax_workers: {types}\n"
        f"upscaling_speed: 1000\n{more}head_node_type: head\n"
        "available_node_types:\n  head: {resources: {CPU: 1}}\n" + "\n".join(node_types) + "\n"
    )
    env = {**os.environ, "SHOAL_HOME": str(home)}
    quiet = {"env": env, "stderr": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    try:
        subprocess.run([SHOAL, "up", f"{home}/c.yaml", "--yes"], check=True, **quiet)  # type: ignore[call-overload]
        yield env
    finally:
        subprocess.run([SHOAL, "down", "--all", "--yes"], **quiet)  # type: ignore[call-overload]


@contextlib.contextmanager
def _driver(
    command: list[str], env: dict[str, str]
) -> Iterator[Callable[[str], tuple[float, float]]]:
    """A running driver, as a function that submits a task."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, text=True) as driver:
        assert driver.stdin is not None and driver.stdout is not None
        stdin, stdout = driver.stdin, driver.stdout

        def submit(resource: str) -> tuple[float, float]:
            stdin.write(f"{resource}\n")
            stdin.flush()
            started, running = map(float, stdout.readline().split())
            return started, running

        yield submit
        stdin.close()  # the driver exits at the end of its input


def _launched_at(home: Path, node_type: str) -> float:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for entry in _journal(home):
            if entry["kind"] == LaunchIntent.kind and entry["node_type"] == node_type:
                return float(entry["at"])
        time.sleep(0.05)
    raise SystemExit(f"nothing was launched for {node_type}")


def _journal(home: Path) -> Iterator[dict[str, Any]]:
    for journal in home.glob("e/*/.shoal/controller/journal.jsonl"):
        for line in journal.read_text().splitlines():
            with contextlib.suppress(ValueError):  # the last line may be incomplete
                yield json.loads(line)


def _p95(waits: list[float]) -> float:
    return sorted(waits)[int(0.95 * (len(waits) - 1) + 0.5)]


def _idle(nodes: int) -> tuple[float, float]:
    command = [sys.executable, "-m", "benchmarks.controller", "idle", str(nodes)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    share, megabytes = map(float, done.stdout.split())
    return share, megabytes


async def _idle_loop(nodes: int) -> None:
    """Run the loop on a cluster that does not change, and print its CPU share and memory."""
    from benchmarks.controller_bench.idle_cluster import IdleCluster

    with tempfile.TemporaryDirectory() as directory:
        controller = IdleCluster(nodes).controller(Path(directory))
        running = asyncio.ensure_future(controller.run())
        await asyncio.sleep(15.0)  # the first iteration adopts every node, which is not idle work
        started, cpu = time.monotonic(), time.process_time()
        await asyncio.sleep(IDLE_SECONDS)
        share = (time.process_time() - cpu) / (time.monotonic() - started)
        running.cancel()
        await asyncio.wait([running])
    print(share, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


if __name__ == "__main__":
    if sys.argv[1:2] == ["idle"]:
        asyncio.run(_idle_loop(int(sys.argv[2])))
    else:
        main()
