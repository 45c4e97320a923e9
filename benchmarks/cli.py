"""Start-up time of the command line, against a bare interpreter and against Ray's."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.report import report

ROUNDS = 15
SLOW_ROUNDS = 5
MAX_ABOVE_BARE_MS = 150.0
MIN_SPEEDUP = 5.0


def main() -> None:
    bin = Path(sys.executable).parent
    with tempfile.TemporaryDirectory() as home:
        env = {**os.environ, "SHOAL_HOME": home}
        bare = _median_ms([sys.executable, "-c", "pass"], env, ROUNDS)
        help = _median_ms([str(bin / "shoal"), "--help"], env, ROUNDS)
        status = _median_ms([str(bin / "shoal"), "status"], env, ROUNDS)
        ray = _median_ms([str(bin / "ray"), "--help"], env, SLOW_ROUNDS)
    above = help - bare
    for command, value in (
        ("python -c pass", bare),
        ("shoal --help", help),
        ("shoal status (no clusters)", status),
        ("ray --help", ray),
    ):
        print(f"{command:<28} {value:7.1f} ms   {value / bare:5.1f} x bare")
    report(
        "cli",
        value=help,
        unit="ms",
        peer=ray,
        limit=bare,
        ratio=ray / help,
        bar=f"at most {MAX_ABOVE_BARE_MS:.0f} ms above the bare interpreter, "
        f"at least {MIN_SPEEDUP:.0f} times faster than ray --help",
        passed=above <= MAX_ABOVE_BARE_MS and ray / help >= MIN_SPEEDUP,
    )


def _median_ms(command: Sequence[str], env: dict[str, str], rounds: int) -> float:
    """The median over some rounds, after one that warms the caches."""
    times = []
    for _ in range(rounds + 1):
        started = time.perf_counter()
        subprocess.run(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        times.append((time.perf_counter() - started) * 1000)
    return statistics.median(times[1:])


if __name__ == "__main__":
    main()
