"""The simulation on a virtual clock, and `shoal simulate`."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from shoal.cli.simulate import command
from shoal.core.errors import ConfigError
from shoal.ops.simulate import changed_policy, read_trace
from shoal.scaling import Offering, Shape, Strategy
from shoal.scaling.simulation import Arrival, SimulationResult, SimulationSettings, simulate
from tests.scaling.clusters import C4, G1, gang, node_type, spec

CPU = Shape.of({"CPU": 1})
OFFERINGS = [Offering("c4", price_per_hour=0.36), Offering("head", price_per_hour=0.0)]
STEADY = SimulationSettings(boot_s=100.0, boot_jitter=0.0, drain_s=0.0, interval_s=10.0)


def simulated(
    *trace: Arrival, settings: SimulationSettings = STEADY, idle_timeout_s: float = 300.0
) -> SimulationResult:
    worker = replace(C4, idle_timeout_s=idle_timeout_s)
    return simulate(spec(worker), OFFERINGS, trace, settings)


def test_a_task_waits_for_its_node_to_boot_and_the_node_costs_until_it_is_terminated() -> None:
    result = simulated(Arrival(0.0, 4, 600.0, CPU))
    assert result.wait_max == 100.0
    assert result.peak_nodes == 1
    # 100 s of boot, 600 s of work, 300 s idle, at $0.36/h
    assert result.cost == pytest.approx(1000 * 0.36 / 3600)
    assert result.busy_share == pytest.approx(600 / 900)


def test_launches_take_the_measured_boots_in_turn() -> None:
    settings = replace(STEADY, measured_boots_s=(50.0, 50.0, 200.0))
    result = simulated(Arrival(0.0, 24, 600.0, CPU), settings=settings)
    assert (result.launches, result.wait_p50, result.wait_max) == (6, 50.0, 200.0)


def test_a_task_waits_for_a_worker_process_unless_one_is_idle_on_its_node() -> None:
    settings = replace(STEADY, worker_start_s=2.0)
    first, more, again = (
        Arrival(0.0, 1, 60.0, CPU),
        Arrival(200.0, 3, 60.0, CPU),
        Arrival(300.0, 4, 60.0, CPU),
    )
    # The node has one worker process, then three, then four.
    assert simulated(first, settings=settings).wait_max == 102.0
    assert simulated(first, more, settings=settings).wait_p50 == 2.0
    result = simulated(first, more, again, settings=settings)
    assert (result.wait_p50, result.wait_p90) == (0.0, 102.0)
    # Processes that start are part of what the node costs.
    assert simulated(first, settings=settings).cost == pytest.approx(462 * 0.36 / 3600)


def test_launches_and_drains_follow_what_happens_after_the_reaction_time() -> None:
    settings = replace(STEADY, reaction_s=3.0, interval_s=1.0)
    result = simulated(Arrival(0.0, 4, 600.0, CPU), settings=settings)
    assert result.wait_max == 103.0
    # 100 s of boot, 600 s of work, 300 s idle and 3 s until that is seen
    assert result.cost == pytest.approx(1003 * 0.36 / 3600)


def test_plans_are_at_least_the_interval_apart() -> None:
    arrivals = [Arrival(i * 0.1, 1, 600.0, CPU) for i in range(100)]
    often = simulated(*arrivals, settings=replace(STEADY, interval_s=1.0))
    seldom = simulated(*arrivals, settings=replace(STEADY, interval_s=10.0))
    assert seldom.plans < often.plans < len(arrivals)


def test_work_that_fits_on_a_free_node_does_not_wait() -> None:
    result = simulated(Arrival(0.0, 1, 60.0, CPU), Arrival(200.0, 4, 60.0, CPU))
    assert (result.wait_p50, result.launches) == (0.0, 1)


def test_a_longer_idle_timeout_costs_more_and_waits_less() -> None:
    waves = [Arrival(i * 600.0, 40, 120.0, CPU) for i in range(10)]
    short, long = simulated(*waves, idle_timeout_s=60.0), simulated(*waves, idle_timeout_s=900.0)
    assert short.cost < long.cost
    assert short.wait_p50 > long.wait_p50 == 0.0


def test_the_same_seed_gives_the_same_run() -> None:
    waves = [Arrival(i * 100.0, 20, 250.0, CPU) for i in range(20)]
    unreliable = SimulationSettings(failure_rate=0.3, seed=3)
    assert simulated(*waves, settings=unreliable) == simulated(*waves, settings=unreliable)
    assert simulated(*waves, settings=unreliable) != simulated(
        *waves, settings=replace(unreliable, seed=4)
    )


def test_failed_launches_are_retried_and_all_work_is_done() -> None:
    result = simulated(Arrival(0.0, 200, 60.0, CPU), settings=replace(STEADY, failure_rate=0.4))
    assert result.failures > 0
    assert result.unfinished == 0


def test_interrupted_work_is_restarted_and_finishes() -> None:
    spot = [Offering("c4", "spot", price_per_hour=0.1)]
    settings = replace(STEADY, interruptions_per_hour=6.0)
    result = simulate(spec(C4), spot, [Arrival(0.0, 40, 600.0, CPU)], settings)
    assert result.interruptions > 0
    assert result.unfinished == 0


def test_infeasible_work_is_reported_and_the_simulation_ends() -> None:
    result = simulated(Arrival(0.0, 1, 60.0, CPU), Arrival(0.0, 3, 60.0, Shape.of({"CPU": 64})))
    assert result.unfinished == 3
    assert math.isfinite(result.seconds)


def test_a_strict_spread_gang_starts_on_different_nodes_at_once() -> None:
    pending = gang(Strategy.STRICT_SPREAD, *[{"CPU": 2}] * 3)
    result = simulated(Arrival(0.0, 1, 60.0, gang=pending))
    assert (result.peak_nodes, result.wait_max) == (3, 100.0)


def test_a_strict_pack_gang_starts_on_one_node() -> None:
    pending = gang(Strategy.STRICT_PACK, *[{"CPU": 1}] * 4)
    assert simulated(Arrival(0.0, 2, 60.0, gang=pending)).peak_nodes == 2


def test_a_floor_keeps_nodes_until_it_is_removed() -> None:
    result = simulated(Arrival(0.0, 8, floor=CPU), Arrival(5000.0, 0, floor=CPU))
    assert result.peak_nodes == 2
    assert result.node_hours == pytest.approx(2 * (5000 - 100) / 3600, rel=0.1)


def test_minimum_workers_do_not_keep_the_clock_running() -> None:
    worker = node_type("c4", {"CPU": 4}, min_workers=2)
    result = simulate(spec(worker), OFFERINGS, [Arrival(0.0, 4, 60.0, CPU)], STEADY)
    assert result.seconds < 3600


def test_cpu_tasks_leave_gpu_nodes_to_gpu_tasks() -> None:
    gpu = Shape.of({"CPU": 1, "GPU": 1})
    trace = [
        Arrival(0.0, 1, 1000.0, gpu),
        Arrival(0.0, 4, 1000.0, CPU),
        Arrival(500.0, 1, 60.0, CPU),
    ]
    offerings = [*OFFERINGS, Offering("g1", price_per_hour=1.0)]
    result = simulate(spec(C4, G1), offerings, trace, STEADY)
    assert result.wait_max == 100.0
    assert result.unfinished == 0


CLUSTER = """
cluster_name: simulated
max_workers: 10
provider: {type: aws, region: us-west-2}
head_node_type: head
available_node_types:
  head: {node_config: {InstanceType: m5.large}, resources: {CPU: 0}, max_workers: 0}
  cpu: {node_config: {InstanceType: m5.xlarge}, max_workers: 10}
"""


@pytest.fixture
def cluster_and_trace(tmp_path: Path) -> list[str]:
    cluster, trace = tmp_path / "cluster.yaml", tmp_path / "trace.jsonl"
    cluster.write_text(CLUSTER)
    rows = [{"at": i * 900, "resources": {"CPU": 1}, "count": 16, "seconds": 300} for i in range(4)]
    trace.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    return [str(cluster), str(trace)]


def test_the_command_compares_two_policies(cluster_and_trace: list[str], tmp_path: Path) -> None:
    chart = tmp_path / "nodes.svg"
    extra = ["--with", "idle_timeout_minutes=20", "--svg", str(chart)]
    result = CliRunner().invoke(command, [*cluster_and_trace, *extra])
    assert result.exit_code == 0, result.output
    assert "unchanged" in result.output
    assert "idle_timeout_minutes=20" in result.output
    assert "█" in result.output
    assert chart.read_text().count("<polyline") == 2


def test_the_command_prints_json(cluster_and_trace: list[str]) -> None:
    result = CliRunner().invoke(command, [*cluster_and_trace, "--json", "--with", "max_workers=2"])
    first, second = json.loads(result.output)
    assert first["peak_nodes"] == 4
    assert second["peak_nodes"] == 2
    assert first["priced"]
    assert second["wait_p99"] > first["wait_p99"]


def test_an_unknown_setting_is_rejected_with_a_list_of_known_ones() -> None:
    with pytest.raises(ConfigError) as error:
        changed_policy(spec(C4), "idle_timeout=3")
    assert "idle_timeout_minutes" in error.value.fix
    for change in ("max_workers=-1", "max_workers=1e30", "target_utilization_fraction=2"):
        with pytest.raises(ConfigError, match="invalid value"):
            changed_policy(spec(C4), change)


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        '{"at": 0}',
        '{"at": -1, "resources": {"CPU": 1}, "seconds": 1}',
        '{"at": 0, "resources": {"CPU": -1}, "seconds": 1}',
        '{"at": 1e30, "resources": {"CPU": 1}, "seconds": 1}',
        '{"at": 0, "resources": {"CPU": 1}, "seconds": 1e30}',
        '{"at": 0, "resources": {"CPU": 1}, "count": 1e30, "seconds": 1}',
        '{"at": 0, "resources": {"CPU": 1}, "count": 1.5, "seconds": 1}',
        '{"at": 0, "bundles": [{"CPU": 1}], "gang": "SOMEHOW", "seconds": 1}',
        "[1, 2]",
    ],
)
def test_an_invalid_line_of_a_trace_is_reported_with_its_number(line: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"at": 0, "resources": {"CPU": 1}, "seconds": 1}\n' + line + "\n")
    with pytest.raises(ConfigError, match="line 2"):
        read_trace(path)
