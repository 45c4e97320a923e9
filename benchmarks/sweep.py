"""A sweep of 1,000 runs against plain Ray tasks that each run the same subprocess, alternating on
one Ray. A run is an empty Python script."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import ray

from benchmarks.report import report
from shoal.jobs.sweep.driver import Driver
from shoal.jobs.sweep.journal import Journal, read_results
from shoal.jobs.sweep.sweep_spec import SweepSpec

RUNS = 1000
ROUNDS = 3
WARM_UP = 50
MAX_RATIO = 1.2


def main() -> None:
    ray.init(
        num_cpus=os.cpu_count(), include_dashboard=False, log_to_driver=False, logging_level="ERROR"
    )
    try:
        with tempfile.TemporaryDirectory() as temporary:
            _compare(Path(temporary))
    finally:
        ray.shutdown()


def _compare(directory: Path) -> None:
    code = directory / "code"
    code.mkdir()
    (code / "run.py").touch()
    _plain(code, WARM_UP)
    _sweep(code, directory / "warm-up", WARM_UP)
    plain, sweep = [], []
    for number in range(ROUNDS):
        plain.append(_plain(code, RUNS))
        sweep.append(_sweep(code, directory / str(number), RUNS))
        print(f"plain tasks {plain[-1]:.1f} s, sweep {sweep[-1]:.1f} s", flush=True)
    value, peer = statistics.median(sweep), statistics.median(plain)
    report(
        "sweep",
        value=value,
        unit="s",
        peer=peer,
        limit=None,
        ratio=value / peer,
        bar=f"the driver of {RUNS} runs takes at most {MAX_RATIO} times as long as plain Ray tasks "
        "that run the same subprocess",
        passed=value <= MAX_RATIO * peer,
    )


def _plain(code: Path, count: int) -> float:
    def run(number: int) -> int:
        command = [sys.executable, "run.py", "--x", str(number)]
        return subprocess.run(command, cwd=code, check=False).returncode

    task = ray.remote(run)
    began = time.monotonic()
    codes = ray.get([task.remote(number) for number in range(count)])
    assert codes == [0] * count
    return time.monotonic() - began


def _sweep(code: Path, directory: Path, count: int) -> float:
    """From the start of the driver until all results are on its disk."""
    spec = SweepSpec("bench", "run.py", code=str(code))
    spec = spec.with_params([{"x": number} for number in range(count)])
    began = time.monotonic()
    Driver(spec, Journal(directory)).run()
    seconds = time.monotonic() - began
    results = read_results(directory)
    assert len(results) == count and all(r["status"] == "ok" for r in results.values())
    return seconds


if __name__ == "__main__":
    main()
