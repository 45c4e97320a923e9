"""Training on spot instances that come and go as in a public trace: how much of what they offer is
used, with Shoal, Ray Train and torchft.

Bamboo's p3 trace is scaled to four workers at 20 times speed, which is 34 minutes for each system;
MINUTES=8 takes the eight minutes with the most changes, and SYSTEMS=shoal,ray,torchft selects the
systems. All have the same model, seed and samples. A worker's step costs time by sleeping, so that
four workers are four times as fast as one on any machine.

Shoal and Ray Train run on real Ray nodes, which are drained with a notice of 6 s (two minutes at 20
times speed) and then shut down. The capacity is what undisturbed groups of plain
DistributedDataParallel train with as many workers as there are nodes, measured in the same run; a
node counts from when it has joined Ray until it is shut down. torchft has no nodes: its capacity is
counted from when a replica's process is started. The share of the linear capacity, N times what one
process trains, is printed too: four processes on two cores need 10 ms to reduce the gradients of a
step of 250 ms, and do not reach it even if undisturbed.

A worker that starts imports torch, which takes seconds and is not 20 times faster in a scaled
trace. On two cores it is slower where several start at once, as in each restart of Ray Train, than
on separate machines.

Ray Train has elastic workers, checkpoints every three seconds and, after a notice, every second,
and short intervals in place of its defaults. What cannot be set is not scaled: Ray Train counts the
nodes of the cluster every 20 s. Shoal leaves a node when a quarter of the notice remains. torchft
has no use for a notice; it leaves out the samples of a lost replica.

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
from benchmarks.train_bench.spot_trace import SPEED, WORKERS, SpotTrace
from benchmarks.train_bench.trace_audit import Losses, Rates
from benchmarks.train_bench.trace_replay import replay
from benchmarks.train_bench.trace_systems import System
from shoal.train.worker.torchrun_env import free_port

SYSTEMS: dict[str, Callable[[Path], contextlib.AbstractContextManager[System]]] = {
    "shoal": trace_systems.shoal,
    "ray": trace_systems.ray_train,
    "torchft": trace_systems.torchft,
}
SHARE, OVER_RAY_TRAIN = 0.97, 1.2
_RATE_STEPS = 60
_RATE_SKIPPED = 5  # the first steps are slower
_RATE_DEADLINE_S = 180.0


@dataclass(frozen=True)
class Result:
    share: float
    linear_share: float
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
    rates = {0: 0.0, **{n: _undisturbed_rate(n) for n in range(1, WORKERS + 1)}}
    text = ", ".join(f"{rates[n]:.2f} with {n}" for n in range(1, WORKERS + 1))
    print(f"plain DistributedDataParallel, samples/s by workers: {text}", flush=True)
    results = {}
    for name in os.environ.get("SYSTEMS", ",".join(SYSTEMS)).split(","):
        try:
            results[name] = _measure(name, trace, rates)
        except (Unavailable, TimeoutError) as error:
            print(f"{name}: could not be measured: {error}", flush=True)
    _report(results)


def _exit(number: int, frame: object) -> NoReturn:
    sys.exit(128 + number)


def _undisturbed_rate(workers: int) -> float:
    """The samples per second of a group that never changes."""
    loop = str(trace_systems.LOOP)
    environment = {
        "PYTHONPATH": trace_systems.python_path(),
        "WORLD_SIZE": str(workers),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port("127.0.0.1")),
    }
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        for rank in range(workers):
            command = [sys.executable, loop, "plain", name]
            stack.enter_context(contained(command, **environment, RANK=str(rank)))
        deadline = time.monotonic() + _RATE_DEADLINE_S
        while len(steps := trace_audit.read_steps(Path(name))) <= _RATE_STEPS:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{workers} undisturbed processes make no steps")
            time.sleep(0.2)
    first, last = steps[_RATE_SKIPPED], steps[_RATE_STEPS]
    return trace_workload.BATCH * (_RATE_STEPS - _RATE_SKIPPED) / (last.end - first.end)


def _measure(name: str, trace: SpotTrace, rates: Rates) -> Result:
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
    capacity = nodes.capacity(rates, start, end)
    linear = nodes.capacity({n: n * rates[1] for n in rates}, start, end)
    trained = trace_audit.samples_between(steps, start, end)
    losses = trace_audit.losses(steps, nodes, rates, start, end)
    lost, repeated = trace_audit.lost_and_repeated(steps)
    result = Result(
        trained / capacity,
        trained / linear,
        trace_audit.stalls(steps, rates, start, end),
        lost,
        repeated,
        _loss_difference(steps[-1]),
        _projection(losses, capacity),
    )
    _print(name, result, losses, capacity)
    return result


def _loss_difference(last: trace_audit.Step) -> float:
    losses = trace_workload.undisturbed_losses()
    return abs(last.loss - next(itertools.islice(losses, last.number, None)))


def _projection(losses: Losses, capacity: float) -> float:
    """The share of the capacity at real speed: each change costs as much, and between two of them
    there is SPEED times as much time."""
    return 1 - losses.other / capacity - (losses.stalled + losses.idle) / (SPEED * capacity)


def _print(name: str, result: Result, losses: Losses, capacity: float) -> None:
    stalls = sorted(result.stalls)
    p50 = statistics.median(stalls) if stalls else 0.0
    p95 = stalls[min(len(stalls) - 1, int(0.95 * len(stalls)))] if stalls else 0.0
    print(
        f"{name}: {result.share:.1%} of a capacity of {capacity:.0f} samples "
        f"({result.linear_share:.1%} of the linear one); "
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
