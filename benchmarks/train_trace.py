"""Training on spot instances that come and go as in a public trace: how much of what they offer is
used, with Shoal, Ray Train and torchft.

Bamboo's p3 trace is scaled to four workers at 20 times speed, which is 34 minutes for each system;
MINUTES=8 takes the eight minutes with the most changes, and SYSTEMS=shoal,ray,torchft selects the
systems. All have the same model, seed and samples. A worker's step costs time by sleeping, so that
four workers are four times as fast as one on any machine.

Shoal and Ray Train run on real Ray nodes, which are drained with a notice of 6 s (two minutes at
20 times speed) and then shut down. The capacity is counted from when a node has joined Ray until it
is shut down, times the samples per second of one plain process, measured in the same run. torchft
has no nodes: its capacity is counted from when a replica's process is started. A worker that starts
imports torch, which takes seconds and is not 20 times faster in a scaled trace. On two cores it is
slower where several start at once, as in each restart of Ray Train, than on separate machines.

Ray Train has elastic workers, checkpoints every three seconds and, after a notice, every second,
and short intervals in place of its defaults. What cannot be set is not scaled: Ray Train counts the
nodes of the cluster every 20 s, and Shoal leaves a node 30 s before its end, here at once.
torchft has no use for a notice; it leaves out the samples of a lost replica.
KEEP_LOGS names a directory for the logs of workers and nodes.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from benchmarks.report import report
from benchmarks.train_bench import spot_trace, trace_audit, trace_systems, trace_workload
from benchmarks.train_bench.contained import contained
from benchmarks.train_bench.peer_packages import Unavailable
from benchmarks.train_bench.spot_trace import SPEED, SpotTrace
from benchmarks.train_bench.trace_audit import Availability, Losses
from benchmarks.train_bench.trace_replay import replay
from benchmarks.train_bench.trace_systems import System

SYSTEMS: dict[str, Callable[[Path], contextlib.AbstractContextManager[System]]] = {
    "shoal": trace_systems.shoal,
    "ray": trace_systems.ray_train,
    "torchft": trace_systems.torchft,
}
SHARE, OVER_RAY_TRAIN = 0.97, 1.2
_RATE_STEPS = 10
_RATE_DEADLINE_S = 120.0


@dataclass(frozen=True)
class Result:
    share: float
    stalls: list[float]
    lost: int
    repeated: int
    loss_difference: float
    projected: float


def main() -> None:
    signal.signal(signal.SIGTERM, _exit)
    path = spot_trace.trace_file()
    if not path.exists():
        print(f"no trace: {path} does not exist; SPOT_TRACE names another file")
        return
    minutes = os.environ.get("MINUTES")
    trace = spot_trace.load(path, float(minutes) if minutes else None)
    print(
        f"{trace.seconds / 60:.1f} min from {len(trace.initial)} workers on: "
        f"{trace.count('add')} join, {trace.count('remove')} end",
        flush=True,
    )
    rate = _undisturbed_rate()
    print(f"one process without any system: {rate:.2f} samples/s", flush=True)
    results = {}
    for name in os.environ.get("SYSTEMS", ",".join(SYSTEMS)).split(","):
        try:
            results[name] = _measure(name, trace, rate)
        except (Unavailable, TimeoutError) as error:
            print(f"{name}: could not be measured: {error}", flush=True)
    _report(results)


def _exit(number: int, frame: object) -> NoReturn:
    sys.exit(128 + number)


def _undisturbed_rate() -> float:
    """The samples per second of one worker that runs alone."""
    loop = str(trace_systems.LOOP)
    with tempfile.TemporaryDirectory() as name:
        path = trace_systems.python_path()
        with contained([sys.executable, loop, "plain", name], PYTHONPATH=path):
            deadline = time.monotonic() + _RATE_DEADLINE_S
            while len(steps := trace_audit.read_steps(Path(name))) <= _RATE_STEPS:
                if time.monotonic() > deadline:
                    raise TimeoutError("one process alone makes no steps")
                time.sleep(0.2)
    seconds = [b.end - a.end for a, b in itertools.pairwise(steps)]
    return trace_workload.BATCH / statistics.median(seconds)


def _measure(name: str, trace: SpotTrace, rate: float) -> Result:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root:
        directory = Path(root) / name
        directory.mkdir()
        try:
            with SYSTEMS[name](directory) as system:
                start, end, nodes = replay(system, trace, directory)
            steps = trace_audit.read_steps(directory, until=end)
        finally:
            if kept := os.environ.get("KEEP_LOGS"):
                shutil.copytree(directory, Path(kept) / name, dirs_exist_ok=True)
    capacity = nodes.node_seconds(start, end)
    share = trace_audit.samples_between(steps, start, end) / (rate * capacity)
    losses = trace_audit.losses(steps, nodes, rate, start, end)
    lost, repeated = trace_audit.lost_and_repeated(steps)
    result = Result(
        share,
        trace_audit.stalls(steps, rate, start, end),
        lost,
        repeated,
        _loss_difference(steps[-1]),
        _projection(losses, capacity),
    )
    _print(name, result, losses, nodes, capacity)
    return result


def _loss_difference(last: trace_audit.Step) -> float:
    losses = trace_workload.undisturbed_losses()
    return abs(last.loss - next(itertools.islice(losses, last.number, None)))


def _projection(losses: Losses, capacity: float) -> float:
    """The share of the capacity at real speed: each change costs as much, and between two of them
    there is SPEED times as much time."""
    return 1 - losses.other / capacity - (losses.stalled + losses.idle) / (SPEED * capacity)


def _print(name: str, result: Result, losses: Losses, nodes: Availability, capacity: float) -> None:
    stalls = sorted(result.stalls)
    p50 = statistics.median(stalls) if stalls else 0.0
    p95 = stalls[min(len(stalls) - 1, int(0.95 * len(stalls)))] if stalls else 0.0
    print(
        f"{name}: {result.share:.1%} of a capacity of {capacity:.0f} worker seconds; "
        f"{len(stalls)} stalls, p50 {p50:.2f} s, p95 {p95:.2f} s; "
        f"{result.lost} samples lost, {result.repeated} repeated; "
        f"final loss differs by {result.loss_difference:.2g}; "
        f"at real speed {result.projected:.1%}"
    )
    parts = {"stalled": losses.stalled, "idle nodes": losses.idle, "steps": losses.other}
    text = ", ".join(f"{what} {seconds / capacity:.1%}" for what, seconds in parts.items())
    print(f"{name}: lost capacity: {text}", flush=True)


def _report(results: dict[str, Result]) -> None:
    if "shoal" not in results:
        print("Shoal could not be measured", flush=True)
        sys.exit(1)
    ours, ray, torchft = results["shoal"], results.get("ray"), results.get("torchft")
    met = ours.share >= SHARE and not ours.lost and not ours.repeated
    if ray is not None:
        met = met and ours.share >= OVER_RAY_TRAIN * ray.share
        real = ours.projected / ray.projected
        print(
            f"{ours.share / ray.share:.2f} times Ray Train; at real speed this model gives "
            f"{real:.2f} times (a simple model with a fixed cost per change: 1.06 times)",
            flush=True,
        )
    if torchft is not None:
        met = met and ours.share >= torchft.share
    peers = [peer.share for peer in (ray, torchft) if peer is not None]
    report(
        "train_trace",
        value=ours.share,
        unit="share of the trace's capacity",
        peer=max(peers, default=None),
        limit=1.0,
        ratio=ours.share / ray.share if ray is not None else 0.0,
        bar=f"at least {SHARE:.0%} of the capacity, no sample lost or repeated, at least "
        f"{OVER_RAY_TRAIN} times Ray Train with just-in-time checkpoints, not below torchft",
        passed=met and ray is not None,
    )


if __name__ == "__main__":
    main()
