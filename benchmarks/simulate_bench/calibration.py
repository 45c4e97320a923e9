"""The same trace on an embedded cluster with real Ray and in simulation.

The simulation gets what a user would measure once for a provider: how long the nodes took to become
ready, how long one takes to drain, and, from the first wave of tasks, how soon the controller
reacts and how long Ray takes to start a worker process. Everything else must come out by itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.controller.state import NodeUpdated
from shoal.ops.cluster_lookup import load_file
from shoal.scaling import Offering, Shape
from shoal.scaling.simulation import Arrival, SimulationSettings, simulate
from shoal.scaling.simulation.result import percentiles

SHOAL = str(Path(sys.executable).parent / "shoal")
DRIVER = Path(__file__).parent / "driver.py"
# Seconds from the start, number of tasks, seconds each: a wave for an empty cluster; one that finds
# all nodes busy and gets new ones before they are free; and one for which three nodes are free and
# two soon will be, before the one that is launched for it is ready. With boots of 25 to 45 s these
# orders have five seconds to spare: a second more or less must not decide how many nodes are
# launched.
TRACE = [(0.0, 6, 75.0), (50.0, 4, 60.0), (125.0, 8, 30.0)]
SETUP_SECONDS = 25
IDLE_SECONDS = 30
CPUS, MAX_WORKERS, PRICE = 2, 8, 0.36
_GONE_DEADLINE_S = 90.0


@dataclass(frozen=True)
class Figures:
    """What is compared."""

    cost: float
    wait_p50: float
    wait_p95: float
    launches: int


@dataclass(frozen=True)
class Measured:
    """The figures of the real run, and what the simulation needs to know of the provider."""

    figures: Figures
    settings: SimulationSettings


def measure(home: Path) -> Measured:
    """Run the trace on an embedded cluster."""
    with _cluster(home) as env:
        command = f"python {home}/driver.py {json.dumps(json.dumps(TRACE))}"
        done = subprocess.run(
            [SHOAL, "exec", "bench", command],
            env=env,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        tasks = json.loads(done.stdout.strip().splitlines()[-1])
        lives = _lives_when_all_are_gone(home)
    seconds = sum(at["gone"] - at["created"] for at in lives)
    p50, p95 = percentiles(Counter(ran - at for at, ran in tasks), (0.5, 0.95))
    figures = Figures(seconds * PRICE / 3600, p50, p95, len(lives))
    return Measured(figures, _settings(tasks, lives))


def _settings(
    tasks: Sequence[tuple[float, float]], lives: Sequence[Mapping[str, float]]
) -> SimulationSettings:
    """How the provider, the controller and Ray behaved."""
    first_wave = sorted(tasks[: TRACE[0][1]])
    nodes = sorted(lives[: len(first_wave) // CPUS], key=lambda at: at["ready"])
    ran = sorted(ran for _, ran in first_wave)
    return SimulationSettings(
        measured_boots_s=tuple(at["ready"] - at["created"] for at in lives if "ready" in at),
        drain_s=statistics.median(at["gone"] - at["draining"] for at in lives if "draining" in at),
        reaction_s=max(0.0, nodes[0]["created"] - first_wave[0][0]),
        worker_start_s=max(
            0.0, statistics.median(t - nodes[i // CPUS]["ready"] for i, t in enumerate(ran))
        ),
    )


def simulated(home: Path, settings: SimulationSettings) -> Figures:
    """Run the trace in simulation, with the same cluster file."""
    spec = load_file(str(home / "c.yaml")).spec
    trace = [Arrival(at, n, seconds, Shape.of({"CPU": 1})) for at, n, seconds in TRACE]
    result = simulate(spec, [Offering("worker", price_per_hour=PRICE)], trace, settings)
    return Figures(result.cost, result.wait_p50, result.wait_p95, result.launches)


@contextlib.contextmanager
def _cluster(home: Path) -> Iterator[Mapping[str, str]]:
    (home / "driver.py").write_text(DRIVER.read_text())
    (home / "c.yaml").write_text(
        f"cluster_name: bench\nprovider: {{type: embedded}}\nmax_workers: {MAX_WORKERS}\n"
        f"upscaling_speed: 1000\nidle_timeout_minutes: {IDLE_SECONDS / 60}\n"
        f"worker_setup_commands: [sleep {SETUP_SECONDS}]\nhead_node_type: head\n"
        f"available_node_types:\n  head: {{resources: {{CPU: 0}}}}\n"
        f"  worker: {{resources: {{CPU: {CPUS}}}, max_workers: {MAX_WORKERS}}}\n"
    )
    env = {**os.environ, "SHOAL_HOME": str(home)}
    quiet = {"env": env, "stderr": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    try:
        subprocess.run([SHOAL, "up", f"{home}/c.yaml", "--yes"], check=True, **quiet)  # type: ignore[call-overload]
        yield env
    finally:
        subprocess.run([SHOAL, "down", "--all", "--yes"], **quiet)  # type: ignore[call-overload]


def _lives_when_all_are_gone(home: Path) -> list[dict[str, float]]:
    """When each worker entered each phase, once all of them are gone."""
    deadline = time.monotonic() + _GONE_DEADLINE_S
    while time.monotonic() < deadline:
        lives: dict[str, dict[str, float]] = {}
        for entry in _journal(home):
            if entry["kind"] == NodeUpdated.kind and entry["node"]["node_type"] == "worker":
                node = entry["node"]
                life = lives.setdefault(node["id"], {"created": node["created"]})
                life.setdefault(node["phase"], node["since"])
        if lives and all("gone" in at for at in lives.values()):
            return sorted(lives.values(), key=lambda at: at["created"])
        time.sleep(0.5)
    raise SystemExit("the workers were not removed in time")


def _journal(home: Path) -> Iterator[dict[str, Any]]:
    for journal in home.glob("e/*/.shoal/controller/journal.jsonl"):
        for line in journal.read_text().splitlines():
            with contextlib.suppress(ValueError):  # the last line may be incomplete
                yield json.loads(line)
