"""A simulated day of work on up to 10,000 nodes, against a limit of one minute; and a trace of
minutes, simulated and on an embedded cluster with real Ray."""

from __future__ import annotations

import math
import random
import tempfile
import time
from pathlib import Path

from benchmarks.planner_bench.clusters import cluster
from benchmarks.report import report
from benchmarks.simulate_bench import calibration
from shoal.scaling import Gang, Offering, Shape, Strategy
from shoal.scaling.simulation import Arrival, SimulationSettings, simulate

LIMIT_S = 60.0
MIN_PEAK = 9_900
DAY_S = 86_400
MAX_DEVIATION = 0.05


def main() -> None:
    day_s = _day()
    is_calibrated = _calibration()
    report(
        "simulate",
        value=day_s,
        unit="s",
        peer=None,
        limit=LIMIT_S,
        ratio=LIMIT_S / day_s,
        bar=f"a day of work on up to 10,000 nodes in under {LIMIT_S:.0f} s; cost, median and p95 "
        f"waiting time of a trace within {MAX_DEVIATION:.0%} of an embedded cluster",
        passed=day_s < LIMIT_S and is_calibrated,
    )


def _calibration() -> bool:
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="shoal") as home:
        measured = calibration.measure(Path(home))
        real = measured.figures
        simulated = calibration.simulated(Path(home), measured.settings)
    settings = measured.settings
    boots_s = ", ".join(f"{s:.1f}" for s in settings.measured_boots_s)
    print(f"\na trace of {sum(n for _, n, _ in calibration.TRACE)} tasks; measured: boots of "
          f"{boots_s} s, drains of {settings.drain_s:.1f} s, reaction within "
          f"{settings.reaction_s:.1f} s, worker processes started in "
          f"{settings.worker_start_s:.1f} s")  # fmt: skip
    print(f"{'':<20}{'real Ray':>12}{'simulated':>12}{'ratio':>8}")
    is_close = real.launches == simulated.launches
    print(f"{'launches':<20}{real.launches:>12}{simulated.launches:>12}")
    for name, a, b in (
        ("cost, cents", real.cost * 100, simulated.cost * 100),
        ("median wait, s", real.wait_p50, simulated.wait_p50),
        ("p95 wait, s", real.wait_p95, simulated.wait_p95),
    ):
        ratio = b / a
        is_close = is_close and abs(ratio - 1) <= MAX_DEVIATION
        print(f"{name:<20}{a:>12.2f}{b:>12.2f}{ratio:>8.3f}")
    return is_close


def _day() -> float:
    types = {
        "c8": {"CPU": 8.0},
        "c32": {"CPU": 32.0},
        "g4": {"CPU": 16.0, "GPU": 4.0},
    }
    offerings = [
        Offering("c8", price_per_hour=0.34),
        Offering("c32", price_per_hour=1.40),
        Offering("g4", price_per_hour=3.90),
    ]
    spec = cluster(types, max_workers=10_000)
    trace = _day_trace()
    settings = SimulationSettings(boot_s=120.0, failure_rate=0.01, interval_s=10.0, seed=1)
    started = time.perf_counter()
    result = simulate(spec, offerings, trace, settings)
    seconds_taken = time.perf_counter() - started
    print(f"{result.tasks:,} tasks over {result.seconds / 3600:.1f} h, {len(trace):,} arrivals")
    print(f"peak {result.peak_nodes:,} nodes, {result.node_hours:,.0f} node hours, "
          f"${result.cost:,.0f}, {result.plans:,} plans")  # fmt: skip
    print(f"waits: p50 {result.wait_p50:.0f} s, p90 {result.wait_p90:.0f} s, "
          f"p99 {result.wait_p99:.0f} s; {result.unfinished} unfinished")  # fmt: skip
    print(f"simulated in {seconds_taken:.1f} s")
    assert result.peak_nodes >= MIN_PEAK and result.seconds >= DAY_S and not result.unfinished
    return seconds_taken


def _day_trace() -> list[Arrival]:
    """Load that follows the time of day, with a burst at noon that fills the cluster."""
    rng = random.Random(7)
    trace = []
    for minute in range(0, 24 * 60, 5):
        level = 0.15 + 0.85 * max(0.0, math.sin(math.pi * (minute - 360) / 840)) ** 2
        at = minute * 60.0
        for cpus, seconds, share in ((1, 600, 4000), (4, 1800, 1000), (8, 3600, 200)):
            count = round(share * level * rng.uniform(0.8, 1.2))
            trace.append(
                Arrival(at, count, seconds * rng.uniform(0.8, 1.2), Shape.of({"CPU": cpus}))
            )
        gpu = Shape.of({"CPU": 2, "GPU": 1})
        trace.append(Arrival(at, round(40 * level), 2400.0, gpu))
        if minute % 60 == 0:
            bundles = Gang((gpu,) * 4, Strategy.STRICT_PACK)
            trace.append(Arrival(at, round(10 * level), 3600.0, gang=bundles))
    trace.append(Arrival(12 * 3600.0, 36_800, 1200.0, Shape.of({"CPU": 4})))
    return trace


if __name__ == "__main__":
    main()
