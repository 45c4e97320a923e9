"""The loop without faults: scaling, config changes, autostop and the published status."""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import replace

import pytest

from shoal.controller import status_file
from shoal.controller.journal import replay
from shoal.controller.node_manager import LaunchResult
from shoal.controller.paths import CONFIG, JOURNAL, STATE
from shoal.core.errors import TransientError
from shoal.core.node_phase import Phase
from shoal.ray_runtime.gcs_client import RequestedInstances
from shoal.scaling import Demand, Gang, Request, Shape, Strategy
from tests.controller.fake_cluster import Harness
from tests.specs import cluster


async def test_pending_tasks_get_their_nodes_in_one_iteration(harness: Harness) -> None:
    harness.cluster.set_pending_tasks(3)
    await harness.iterate()
    assert [launch.count for launch in harness.cluster.launch_requests] == [3]
    harness.cluster.set_pending_tasks(0)
    await harness.iterate()
    assert {n.phase for n in harness.state.nodes.values()} == {Phase.READY}
    assert len(harness.cluster.ray) == 4


async def test_the_log_tells_launches_phases_and_reasons_and_an_idle_loop_logs_nothing(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="shoal.controller.journal")
    harness.cluster.set_pending_tasks(1)
    await harness.iterate(2)
    harness.cluster.set_pending_tasks(0)
    await harness.iterate(2)
    (decision,) = [m for m in caplog.messages if m.startswith("launch 1 x worker: ")]
    assert decision.endswith(harness.reasons("launch")[0])
    assert "launching 1 x worker (on-demand)" in caplog.messages
    phases = [m for m in caplog.messages if m.startswith("worker-1 ")]
    assert phases[0] == "worker-1 (i-1) new -> booting"
    assert phases[-1] == "worker-1 (i-1) starting -> ready"
    caplog.clear()
    await harness.iterate(5)
    assert caplog.messages == []


async def test_pending_nodes_are_not_launched_again(harness: Harness) -> None:
    harness.cluster.setup_gate = asyncio.Event()
    harness.cluster.set_pending_tasks(2)
    await harness.iterate(5)
    assert len(harness.cluster.workers) == 2
    assert {p.node_type for p in harness.cluster.pending} == {"worker"}
    harness.cluster.setup_gate.set()


async def test_all_nodes_of_a_gang_are_launched_together(harness: Harness) -> None:
    gang = Gang((Shape.of({"CPU": 1.0}),) * 3, Strategy.STRICT_SPREAD)
    harness.cluster.demand = Demand(gangs=(gang,))
    await harness.iterate()
    assert len(harness.cluster.workers) == 3


async def test_an_idle_node_is_drained_and_then_terminated(harness: Harness) -> None:
    harness.cluster.set_pending_tasks(1)
    await harness.iterate()
    harness.cluster.set_pending_tasks(0)
    (worker,) = harness.cluster.workers
    harness.cluster.set_idle(worker, 299)
    await harness.iterate(seconds=400)
    assert worker in harness.cluster.instances
    harness.cluster.set_idle(worker, 301)
    await harness.iterate(2)
    assert harness.cluster.workers == []
    assert harness.state.gone[worker].ended.startswith("idle for 5 min")


async def test_idle_time_counts_from_when_a_node_is_ready(
    harness: Harness,
) -> None:
    harness.cluster.set_pending_tasks(1)
    await harness.iterate()
    harness.cluster.set_pending_tasks(0)
    (worker,) = harness.cluster.workers
    harness.cluster.set_idle(worker, 1000)  # Ray counts from the start of the raylet
    await harness.iterate(2, seconds=140)
    assert worker in harness.cluster.instances
    await harness.iterate(2, seconds=21)
    assert harness.cluster.workers == []


async def test_a_node_that_became_busy_again_stays(harness: Harness) -> None:
    harness.cluster.set_pending_tasks(1)
    await harness.iterate()
    harness.cluster.set_pending_tasks(0)
    (worker,) = harness.cluster.workers
    harness.cluster.set_idle(worker, 301)
    # Ray schedules a task between the reading and the drain.
    harness.cluster.drain_idle = lambda ray_id, why: (False, "it runs a task")  # type: ignore[method-assign]
    await harness.iterate(seconds=400)
    assert harness.state.nodes[worker].phase is Phase.READY
    assert harness.reasons("keep") == ["it is in use again: it runs a task"]
    assert worker in harness.cluster.instances


async def test_new_limits_reach_a_running_controller(harness: Harness) -> None:
    harness.cluster.set_pending_tasks(9)
    await harness.iterate(2)
    assert len(harness.cluster.workers) == 5
    harness.write_config(cluster(max_workers=7))
    await harness.iterate(2)
    assert len(harness.cluster.workers) == 7
    harness.cluster.set_pending_tasks(0)
    harness.cluster.busy = set(harness.cluster.workers[:6])
    for worker in harness.cluster.workers:
        harness.cluster.set_idle(worker, 1)
    harness.write_config(cluster(max_workers=4))
    await harness.iterate(3)
    assert set(harness.cluster.workers) == harness.cluster.busy, (
        "only idle nodes are drained at once"
    )
    harness.cluster.busy = set(harness.cluster.workers[:4])
    await harness.iterate(3)
    assert set(harness.cluster.workers) == harness.cluster.busy


async def test_autostop_shuts_down_a_cluster_that_is_unused_for_long_enough(
    harness: Harness,
) -> None:
    spec = cluster(max_workers=5)
    harness.write_config(replace(spec, shoal=replace(spec.shoal, autostop=60)))
    harness.cluster.set_pending_tasks(1)
    harness.cluster.set_idle("head", 1000)
    await harness.iterate()
    (worker,) = harness.cluster.workers
    harness.cluster.set_pending_tasks(0)
    harness.cluster.busy = {worker}
    await harness.iterate(2)
    assert worker in harness.cluster.instances, "running work is use"
    harness.cluster.busy = set()
    harness.cluster.set_idle(worker, 59)
    await harness.iterate()
    assert worker in harness.cluster.instances
    harness.cluster.set_idle(worker, 60)
    harness.cluster.driver_connected = True
    await harness.iterate()
    harness.cluster.driver_connected, harness.cluster.user_sessions = False, True
    await harness.iterate(2, seconds=60)
    assert worker in harness.cluster.instances, "so are a connected driver and a user session"
    harness.cluster.user_sessions = False
    await harness.iterate(seconds=59)
    assert worker in harness.cluster.instances, "after they leave, the idle time starts again"
    await harness.iterate(seconds=60)
    assert harness.cluster.instances == {}
    assert harness.reasons("stop") == ["idle for 60 s (autostop)"]


async def test_the_status_says_when_an_unused_cluster_stops(harness: Harness) -> None:
    spec = cluster(max_workers=5)
    harness.write_config(replace(spec, shoal=replace(spec.shoal, autostop=600)))
    harness.cluster.set_idle("head", 1000)
    await harness.iterate()
    applied_at = harness.state.applied_config.at
    assert status_of(harness).autostop_at == applied_at + 600
    harness.cluster.set_pending_tasks(1)
    await harness.iterate()
    assert status_of(harness).autostop_at is None, "it is used"


async def test_up_on_an_idle_cluster_restarts_the_idle_time(harness: Harness) -> None:
    spec = cluster(max_workers=5)
    await harness.iterate(2, seconds=5000)
    harness.cluster.set_idle("head", 10000)
    harness.write_config(replace(spec, shoal=replace(spec.shoal, autostop=60)))
    await harness.iterate()
    harness.restart()
    await harness.iterate(2, seconds=29)
    assert "head" in harness.cluster.instances, "also if the controller was restarted meanwhile"
    await harness.iterate(seconds=2)
    assert harness.cluster.instances == {}


async def test_work_that_arrives_during_the_session_check_keeps_the_cluster(
    harness: Harness,
) -> None:
    spec = cluster(max_workers=5)
    harness.write_config(replace(spec, shoal=replace(spec.shoal, autostop=60)))
    harness.cluster.set_idle("head", 1000)

    async def no_sessions(gcs_address: str, instances: object) -> bool:
        harness.cluster.set_pending_tasks(1)
        return False

    harness.cluster.has_user_sessions = no_sessions  # type: ignore[method-assign]
    await harness.iterate(3, seconds=60)
    assert "head" in harness.cluster.instances
    assert harness.reasons("stop") == []


async def test_a_booting_node_is_use_and_autostop_can_be_turned_off(
    harness: Harness,
) -> None:
    spec = cluster(max_workers=5)
    harness.write_config(replace(spec, shoal=replace(spec.shoal, autostop=60)))
    harness.cluster.setup_gate = asyncio.Event()
    harness.cluster.set_pending_tasks(1)
    await harness.iterate()
    harness.cluster.set_pending_tasks(0)
    harness.cluster.set_idle("head", 1000)
    await harness.iterate(3)
    assert "head" in harness.cluster.instances
    harness.write_config(spec)
    harness.cluster.setup_gate.set()
    await harness.iterate(2)
    harness.cluster.set_idle(harness.cluster.workers[0], 100)
    await harness.iterate(2, seconds=100)
    assert "head" in harness.cluster.instances
    assert harness.reasons("reconfigure")[-1].endswith("no autostop")


async def test_a_failed_shutdown_is_retried(harness: Harness) -> None:
    spec = cluster(max_workers=5)
    harness.write_config(replace(spec, shoal=replace(spec.shoal, autostop=60)))
    harness.cluster.set_idle("head", 1000)
    harness.cluster.shutdown_error = TransientError("the provider is busy")
    await harness.iterate(3, seconds=60)
    assert "head" in harness.cluster.instances
    assert set(harness.reasons("retry")) == {"the provider is busy"}
    harness.cluster.shutdown_error = None
    await harness.iterate(seconds=60)
    assert harness.cluster.instances == {}


async def test_a_shutdown_without_a_config_is_retried_with_backoff_until_it_succeeds(
    harness: Harness,
) -> None:
    spec = cluster(max_workers=5)
    harness.write_config(replace(spec, shoal=replace(spec.shoal, autostop=60)))
    harness.cluster.set_idle("head", 1000)
    attempts: list[float] = []

    async def shut_down_cluster(instances: object) -> None:
        (harness.directory / CONFIG).unlink(missing_ok=True)  # as it is before the head stops
        attempts.append(harness.cluster.time)
        if len(attempts) < 4:
            raise TransientError("the provider is busy")
        harness.cluster.instances.clear()

    harness.cluster.shut_down_cluster = shut_down_cluster  # type: ignore[method-assign]
    await asyncio.wait_for(harness.controller.run(), 30)
    assert harness.cluster.instances == {}
    delays = [after - before for before, after in itertools.pairwise(attempts)]
    assert len(delays) == 3
    assert delays == sorted(delays)
    assert delays[0] >= 5, "a busy provider is not called in every iteration"


async def test_up_during_a_failing_shutdown_keeps_the_cluster(
    harness: Harness,
) -> None:
    spec = cluster(max_workers=5)
    spec = replace(spec, shoal=replace(spec.shoal, autostop=60))
    harness.write_config(spec)
    harness.cluster.set_idle("head", 1000)
    harness.cluster.shutdown_error = TransientError("the provider is busy")
    await harness.iterate(3, seconds=60)
    assert harness.reasons("retry")
    harness.cluster.shutdown_error = None
    harness.write_config(spec)
    await harness.iterate(3)
    assert "head" in harness.cluster.instances
    assert harness.reasons("keep") == ["autostop cancelled by `shoal up`"]


async def test_it_exits_when_its_config_is_removed(harness: Harness) -> None:
    await harness.iterate()
    (harness.directory / CONFIG).unlink()
    await harness.controller.run()


async def test_an_unreadable_config_changes_nothing(harness: Harness) -> None:
    await harness.iterate()
    (harness.directory / CONFIG).write_text("{not json")
    harness.cluster.set_pending_tasks(1)
    await harness.iterate()
    assert len(harness.cluster.workers) == 1


async def test_the_status_lists_waiting_demand_and_nodes(harness: Harness) -> None:
    harness.cluster.set_pending_tasks(8)
    await harness.iterate(2)
    state = status_file.parse((harness.directory / STATE).read_text())
    (row,) = state.waiting
    assert row.count == 8
    assert "max_workers" in row.outlook
    assert len(state.nodes) == 6


async def test_waiting_demand_names_only_pending_nodes_that_could_hold_it(
    harness: Harness,
) -> None:
    spec = cluster(max_workers=5)
    gpu = replace(spec.node_types["worker"], name="gpu", resources={"CPU": 1, "GPU": 1})
    harness.write_config(replace(spec, node_types={**spec.node_types, "gpu": gpu}))
    harness.cluster.setup_gate = asyncio.Event()
    small, large = Shape.of({"CPU": 1.0}), Shape.of({"GPU": 1.0})
    harness.cluster.demand = Demand((Request(small, 2), Request(large)))
    await harness.iterate(2)
    harness.cluster.demand = replace(harness.cluster.demand, floors=(Request(small, 9),))
    await harness.iterate()
    rows = status_file.parse((harness.directory / STATE).read_text()).waiting
    outlooks = {row.subject: row.outlook for row in rows}
    assert "(worker, " in outlooks[str(small)]
    assert "(gpu, " in outlooks[str(large)]
    assert "(worker, " not in outlooks[str(large)]
    assert "max_workers" in outlooks[f"request_resources {small}"], (
        "a floor that cannot be met waits as well"
    )
    harness.cluster.setup_gate.set()


async def test_requested_instances_are_reported_to_the_gcs(harness: Harness) -> None:
    answered = asyncio.Event()

    async def slow(request: object) -> LaunchResult:
        await answered.wait()
        return LaunchResult([])

    harness.cluster.launch = slow  # type: ignore[method-assign]
    harness.cluster.in_setup = 2  # before Python 3.12, `wait_for` runs the call in a task
    harness.cluster.set_pending_tasks(2)
    await harness.iterate(2)
    (requested,) = harness.cluster.pending
    assert isinstance(requested, RequestedInstances)
    assert (requested.node_type, requested.count) == ("worker", 2)
    answered.set()


async def test_many_kinds_of_unmet_demand_are_recorded_once_and_displace_no_other_decision(
    harness: Harness,
) -> None:
    harness.cluster.set_pending_tasks(5)
    await harness.iterate(2)
    kinds = [Request(Shape.of({"CPU": 1.0 - n / 1000})) for n in range(300)]
    harness.cluster.demand = Demand((*kinds, Request(Shape.of({"nothing": 1.0}))))
    await harness.iterate(2)
    journal = harness.directory / JOURNAL
    size, unmet = journal.stat().st_size, harness.reasons("unmet")
    assert 10 < len(unmet) < 50
    assert any("--pending lists them" in why for why in unmet)
    await harness.iterate(5)
    assert journal.stat().st_size == size, "nothing new was recorded"
    assert harness.reasons("launch"), "earlier decisions are still there"
    assert len(status_file.parse((harness.directory / STATE).read_text()).waiting) == 301
    harness.cluster.demand = Demand()
    await harness.iterate(5, seconds=30)
    harness.cluster.demand = Demand((kinds[0],))
    harness.cluster.busy = set(harness.cluster.workers)
    await harness.iterate(4)  # at first it may be the work that made them busy
    assert len(harness.reasons("unmet")) == len(unmet) + 1, "demand that returns is recorded again"


async def test_the_journal_replays_to_the_published_status(harness: Harness) -> None:
    harness.cluster.set_pending_tasks(4)
    await harness.iterate(2)
    harness.cluster.set_pending_tasks(0)
    for worker in harness.cluster.workers[:2]:
        harness.cluster.set_idle(worker, 400)
    await harness.iterate(3)
    written = json.loads((harness.directory / STATE).read_text())
    state, unreadable = replay(harness.directory / JOURNAL)
    replayed = json.loads(json.dumps(status_file.journaled(state), default=lambda d: d.__dict__))
    assert unreadable == 0
    assert [n["id"] for n in replayed["nodes"]] == [n["id"] for n in written["nodes"]]
    assert replayed["nodes"] == written["nodes"]
    assert replayed["gone"] == written["gone"]


async def test_nodes_of_a_type_that_was_removed_from_the_file_are_terminated(
    harness: Harness,
) -> None:
    harness.cluster.set_pending_tasks(1)
    await harness.iterate()
    harness.cluster.set_pending_tasks(0)
    (worker,) = harness.cluster.workers
    harness.cluster.set_idle(worker, 1)
    spec = cluster()
    harness.write_config(replace(spec, node_types={"head": spec.node_types["head"]}))
    await harness.iterate(3)
    assert harness.cluster.workers == []


async def test_consolidation_drains_a_node_whose_work_can_move(harness: Harness) -> None:
    spec = cluster(max_workers=5)
    harness.write_config(replace(spec, shoal=replace(spec.shoal, consolidate=True)))
    harness.cluster.set_pending_tasks(2)
    await harness.iterate(2)
    harness.cluster.set_pending_tasks(0)
    first, second = harness.cluster.workers
    for worker in (first, second):  # each is half full
        harness.cluster.ray[worker] = replace(
            harness.cluster.ray[worker],
            status="running",
            total={"CPU": 2.0},
            available={"CPU": 1.0},
        )
    harness.cluster.pinned_nodes = {first, second}
    await harness.iterate(5, seconds=120)
    assert harness.reasons("drain") == [], "work that cannot move stays"
    harness.cluster.pinned_nodes = {first}
    await harness.iterate(2, seconds=20)
    (why,) = harness.reasons("drain")
    assert harness.state.nodes[second].phase is Phase.DRAINING, why
    assert harness.state.nodes[first].phase is Phase.READY
    await harness.iterate(10, seconds=3600)
    assert second in harness.cluster.instances, "running work is not cut short"
    harness.cluster.ray[second] = replace(harness.cluster.ray[second], available={"CPU": 2.0})
    harness.cluster.actors = {second}
    await harness.iterate(3)
    assert second in harness.cluster.instances, "nor is an actor without resources"
    harness.cluster.actors = set()
    await harness.iterate(2)
    assert harness.cluster.workers == [first]


def status_of(harness: Harness) -> status_file.ControllerStatus:
    return status_file.parse((harness.directory / STATE).read_text())
