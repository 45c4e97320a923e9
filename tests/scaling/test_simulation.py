"""The cluster on a virtual clock."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from shoal.cli.simulate import command
from shoal.core.errors import ConfigError
from shoal.ops.simulate import changed, read_trace
from shoal.scaling import Offering, Shape, Strategy
from shoal.scaling.simulation import Arrival, Outcome, World, simulate
from tests.scaling.clusters import C4, G1, gang, node_type, spec

CPU = Shape.of({"CPU": 1})
OFFERS = [Offering("c4", price_per_hour=0.36), Offering("head", price_per_hour=0.0)]
STEADY = World(boot_s=100.0, boot_spread=0.0, drain_s=0.0, interval_s=10.0)


def ran(*trace: Arrival, world: World = STEADY, idle_timeout_s: float = 300.0) -> Outcome:
    kind = replace(C4, idle_timeout_s=idle_timeout_s)
    return simulate(spec(kind), OFFERS, trace, world)


def test_a_task_waits_for_its_machine_to_boot_and_pays_until_it_is_given_back() -> None:
    result = ran(Arrival(0.0, 4, 600.0, CPU))
    assert result.wait_max == 100.0
    assert result.peak_nodes == 1
    # 100 s of boot, 600 s of work, 300 s idle, at 0.36 an hour
    assert result.cost == pytest.approx(1000 * 0.36 / 3600)
    assert result.busy_share == pytest.approx(600 / 900)


def test_work_that_finds_a_free_node_does_not_wait() -> None:
    result = ran(Arrival(0.0, 1, 60.0, CPU), Arrival(200.0, 4, 60.0, CPU))
    assert (result.wait_p50, result.launches) == (0.0, 1)


def test_a_longer_idle_timeout_costs_more_and_waits_less() -> None:
    waves = [Arrival(i * 600.0, 40, 120.0, CPU) for i in range(10)]
    short, long = ran(*waves, idle_timeout_s=60.0), ran(*waves, idle_timeout_s=900.0)
    assert short.cost < long.cost
    assert short.wait_p50 > long.wait_p50 == 0.0


def test_the_same_seed_gives_the_same_run() -> None:
    waves = [Arrival(i * 100.0, 20, 250.0, CPU) for i in range(20)]
    rough = World(failure_rate=0.3, seed=3)
    assert ran(*waves, world=rough) == ran(*waves, world=rough)
    assert ran(*waves, world=rough) != ran(*waves, world=replace(rough, seed=4))


def test_machines_that_cannot_be_had_are_asked_for_again_and_all_work_is_done() -> None:
    result = ran(Arrival(0.0, 200, 60.0, CPU), world=replace(STEADY, failure_rate=0.4))
    assert result.failures > 0
    assert result.unfinished == 0


def test_interrupted_work_starts_over_and_is_done_in_the_end() -> None:
    spot = [Offering("c4", "spot", price_per_hour=0.1)]
    world = replace(STEADY, interruptions_per_hour=6.0)
    result = simulate(spec(C4), spot, [Arrival(0.0, 40, 600.0, CPU)], world)
    assert result.interruptions > 0
    assert result.unfinished == 0


def test_work_that_fits_nowhere_is_reported_and_does_not_go_on_for_ever() -> None:
    result = ran(Arrival(0.0, 1, 60.0, CPU), Arrival(0.0, 3, 60.0, Shape.of({"CPU": 64})))
    assert result.unfinished == 3
    assert math.isfinite(result.seconds)


def test_a_gang_starts_on_nodes_of_its_own_all_at_once() -> None:
    wanted = gang(Strategy.STRICT_SPREAD, *[{"CPU": 2}] * 3)
    result = ran(Arrival(0.0, 1, 60.0, gang=wanted))
    assert (result.peak_nodes, result.wait_max) == (3, 100.0)


def test_a_packed_gang_starts_on_one_node() -> None:
    wanted = gang(Strategy.STRICT_PACK, *[{"CPU": 1}] * 4)
    assert ran(Arrival(0.0, 2, 60.0, gang=wanted)).peak_nodes == 2


def test_a_floor_keeps_nodes_until_it_is_lifted() -> None:
    result = ran(Arrival(0.0, 8, floor=CPU), Arrival(5000.0, 0, floor=CPU))
    assert result.peak_nodes == 2
    assert result.node_hours == pytest.approx(2 * (5000 - 100) / 3600, rel=0.1)


def test_minimum_workers_do_not_keep_the_clock_running() -> None:
    kind = node_type("c4", {"CPU": 4}, least=2)
    result = simulate(spec(kind), OFFERS, [Arrival(0.0, 4, 60.0, CPU)], STEADY)
    assert result.seconds < 3600


def test_plain_tasks_leave_gpu_nodes_to_gpu_tasks() -> None:
    gpu = Shape.of({"CPU": 1, "GPU": 1})
    trace = [
        Arrival(0.0, 1, 1000.0, gpu),
        Arrival(0.0, 4, 1000.0, CPU),
        Arrival(500.0, 1, 60.0, CPU),
    ]
    offers = [*OFFERS, Offering("g1", price_per_hour=1.0)]
    result = simulate(spec(C4, G1), offers, trace, STEADY)
    assert result.wait_max == 100.0
    assert result.unfinished == 0


CLUSTER = """
cluster_name: paper
max_workers: 10
provider: {type: aws, region: us-west-2}
head_node_type: head
available_node_types:
  head: {node_config: {InstanceType: m5.large}, resources: {CPU: 0}, max_workers: 0}
  cpu: {node_config: {InstanceType: m5.xlarge}, max_workers: 10}
"""


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    cluster, trace = tmp_path / "cluster.yaml", tmp_path / "trace.jsonl"
    cluster.write_text(CLUSTER)
    rows = [{"at": i * 900, "resources": {"CPU": 1}, "count": 16, "seconds": 300} for i in range(4)]
    trace.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    return [str(cluster), str(trace)]


def test_the_command_sets_two_policies_side_by_side(files: list[str], tmp_path: Path) -> None:
    chart = tmp_path / "nodes.svg"
    extra = ["--with", "idle_timeout_minutes=20", "--svg", str(chart)]
    result = CliRunner().invoke(command, [*files, *extra])
    assert result.exit_code == 0, result.output
    assert "as the file says" in result.output
    assert "idle_timeout_minutes=20" in result.output
    assert "█" in result.output
    assert chart.read_text().count("<polyline") == 2


def test_the_command_speaks_json(files: list[str]) -> None:
    result = CliRunner().invoke(command, [*files, "--json", "--with", "max_workers=2"])
    first, second = json.loads(result.output)
    assert first["peak_nodes"] == 4
    assert second["peak_nodes"] == 2
    assert first["priced"]
    assert second["wait_p99"] > first["wait_p99"]


def test_a_setting_that_cannot_be_simulated_is_refused_with_those_that_can() -> None:
    with pytest.raises(ConfigError) as error:
        changed(spec(C4), "idle_timeout=3")
    assert "idle_timeout_minutes" in error.value.fix
    with pytest.raises(ConfigError):
        changed(spec(C4), "max_workers=-1")


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        '{"at": 0}',
        '{"at": -1, "resources": {"CPU": 1}, "seconds": 1}',
        '{"at": 0, "resources": {"CPU": -1}, "seconds": 1}',
        '{"at": 0, "bundles": [{"CPU": 1}], "gang": "SOMEHOW", "seconds": 1}',
        "[1, 2]",
    ],
)
def test_a_line_that_is_no_arrival_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"at": 0, "resources": {"CPU": 1}, "seconds": 1}\n' + line + "\n")
    with pytest.raises(ConfigError, match="line 2"):
        read_trace(path)
