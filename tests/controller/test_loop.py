"""What the controller does when all goes well, and when a person changes their mind."""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import replace

from shoal.controller import status_file
from shoal.controller.journal import replay
from shoal.controller.node_manager import LaunchResult
from shoal.controller.paths import CONFIG, JOURNAL, STATE
from shoal.core.errors import TransientError
from shoal.core.node_phase import Phase
from shoal.ray_runtime.gcs_client import Requested
from shoal.scaling import Demand, Gang, Request, Shape, Strategy
from tests.controller.fake_cluster import Harness
from tests.specs import cluster


async def test_pending_work_gets_its_nodes_in_one_turn(harness: Harness) -> None:
    harness.cluster.set_pending_tasks(3)
    await harness.iterate()
    assert [launch.count for launch in harness.cluster.launch_requests] == [3]
    harness.cluster.set_pending_tasks(0)
    await harness.iterate()
    assert {n.phase for n in harness.state.nodes.values()} == {Phase.READY}
    assert len(harness.cluster.ray) == 4


async def test_nodes_on_their_way_are_not_launched_again(harness: Harness) -> None:
    harness.cluster.setup_gate = asyncio.Event()
    harness.cluster.set_pending_tasks(2)
    await harness.iterate(5)
    assert len(harness.cluster.workers) == 2
    assert {p.node_type for p in harness.cluster.pending} == {"worker"}
    harness.cluster.setup_gate.set()


async def test_a_gang_is_launched_whole(harness: Harness) -> None:
    gang = Gang((Shape.of({"CPU": 1.0}),) * 3, Strategy.STRICT_SPREAD)
    harness.cluster.demand = Demand(gangs=(gang,))
    await harness.iterate()
    assert len(harness.cluster.workers) == 3


async def test_an_idle_node_is_drained_and_then_ended(harness: Harness) -> None:
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


async def test_a_node_that_was_slow_to_start_gets_its_idle_time_after_that(
    harness: Harness,
) -> None:
    harness.cluster.set_pending_tasks(1)
    await harness.iterate()
    harness.cluster.set_pending_tasks(0)
    (worker,) = harness.cluster.workers
    harness.cluster.set_idle(worker, 1000)  # as Ray counts, from the start of its daemon
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
    # Ray gives it a task between our reading and our asking.
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
    assert set(harness.cluster.workers) == harness.cluster.busy, "only what was idle may go at once"
    harness.cluster.busy = set(harness.cluster.workers[:4])
    await harness.iterate(3)
    assert set(harness.cluster.workers) == harness.cluster.busy


async def test_a_cluster_that_nobody_used_for_long_is_given_back_whole(harness: Harness) -> None:
    spec = cluster(max_workers=5)
    harness.write_config(replace(spec, shoal=replace(spec.shoal, autostop=60)))
    harness.cluster.set_pending_tasks(1)
    harness.cluster.set_idle("head", 1000)
    await harness.iterate()
    (worker,) = harness.cluster.workers
    harness.cluster.set_pending_tasks(0)
    harness.cluster.busy = {worker}
    await harness.iterate(2)
    assert worker in harness.cluster.instances, "work that runs is use"
    harness.cluster.busy = set()
    harness.cluster.set_idle(worker, 59)
    await harness.iterate()
    assert worker in harness.cluster.instances
    harness.cluster.set_idle(worker, 60)
    harness.cluster.driver_connected = True
    await harness.iterate()
    harness.cluster.driver_connected, harness.cluster.user_sessions = False, True
    await harness.iterate(2, seconds=60)
    assert worker in harness.cluster.instances, "so is a program that sleeps, and a person"
    harness.cluster.user_sessions = False
    await harness.iterate(seconds=59)
    assert worker in harness.cluster.instances, "they may come back at once"
    await harness.iterate(seconds=60)
    assert harness.cluster.instances == {}
    assert harness.reasons("stop") == ["idle for 60 s (autostop)"]


async def test_whoever_runs_up_on_an_idle_cluster_has_its_whole_time(harness: Harness) -> None:
    spec = cluster(max_workers=5)
    await harness.iterate(2, seconds=5000)
    harness.cluster.set_idle("head", 10000)
    harness.write_config(replace(spec, shoal=replace(spec.shoal, autostop=60)))
    await harness.iterate()
    harness.restart()
    await harness.iterate(2, seconds=29)
    assert "head" in harness.cluster.instances, "also when the controller was restarted meanwhile"
    await harness.iterate(seconds=2)
    assert harness.cluster.instances == {}


async def test_work_that_comes_while_people_are_looked_for_keeps_the_cluster(
    harness: Harness,
) -> None:
    spec = cluster(max_workers=5)
    harness.write_config(replace(spec, shoal=replace(spec.shoal, autostop=60)))
    harness.cluster.set_idle("head", 1000)

    async def nobody(gcs_address: str, instances: object) -> bool:
        harness.cluster.set_pending_tasks(1)
        return False

    harness.cluster.has_user_sessions = nobody  # type: ignore[method-assign]
    await harness.iterate(3, seconds=60)
    assert "head" in harness.cluster.instances
    assert harness.reasons("stop") == []


async def test_a_cluster_whose_node_boots_is_in_use_and_autostop_can_be_turned_off(
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


async def test_a_cluster_that_does_not_go_at_first_is_tried_again(harness: Harness) -> None:
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


async def test_a_head_that_took_its_leave_and_stays_on_is_tried_again_until_it_goes(
    harness: Harness,
) -> None:
    spec = cluster(max_workers=5)
    harness.write_config(replace(spec, shoal=replace(spec.shoal, autostop=60)))
    harness.cluster.set_idle("head", 1000)
    tried: list[float] = []

    async def shut_down_cluster(instances: object) -> None:
        (harness.directory / CONFIG).unlink(missing_ok=True)  # as it does before the head goes
        tried.append(harness.cluster.time)
        if len(tried) < 4:
            raise TransientError("the provider is busy")
        harness.cluster.instances.clear()

    harness.cluster.shut_down_cluster = shut_down_cluster  # type: ignore[method-assign]
    await asyncio.wait_for(harness.controller.run(), 30)
    assert harness.cluster.instances == {}
    rests = [after - before for before, after in itertools.pairwise(tried)]
    assert len(rests) == 3
    assert rests == sorted(rests)
    assert rests[0] >= 5, "a provider that is busy is not asked at every turn"


async def test_a_cluster_that_somebody_wants_again_before_it_is_gone_stays(
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


async def test_its_state_says_what_waits_and_what_comes(harness: Harness) -> None:
    harness.cluster.set_pending_tasks(8)
    await harness.iterate(2)
    state = status_file.parse((harness.directory / STATE).read_text())
    (row,) = state.waiting
    assert row.count == 8
    assert "max_workers" in row.outlook
    assert len(state.nodes) == 6


async def test_what_waits_is_told_of_the_nodes_that_could_hold_it_and_of_no_others(
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
    told = {row.subject: row.outlook for row in rows}
    assert "(worker, " in told[str(small)]
    assert "(gpu, " in told[str(large)]
    assert "(worker, " not in told[str(large)]
    assert "max_workers" in told[f"request_resources {small}"], (
        "a floor that cannot be met waits as well"
    )
    harness.cluster.setup_gate.set()


async def test_ray_is_told_of_machines_that_were_asked_for(harness: Harness) -> None:
    asked = asyncio.Event()

    async def slow(request: object) -> LaunchResult:
        await asked.wait()
        return LaunchResult([])

    harness.cluster.launch = slow  # type: ignore[method-assign]
    harness.cluster.in_setup = 1
    harness.cluster.set_pending_tasks(2)
    await harness.iterate(2)
    (machines,) = harness.cluster.pending
    assert isinstance(machines, Requested)
    assert (machines.node_type, machines.count) == ("worker", 2)
    asked.set()


async def test_many_kinds_of_waiting_work_are_told_once_and_push_nothing_out(
    harness: Harness,
) -> None:
    harness.cluster.set_pending_tasks(5)
    await harness.iterate(2)
    kinds = [Request(Shape.of({"CPU": 1.0 - n / 1000})) for n in range(300)]
    harness.cluster.demand = Demand((*kinds, Request(Shape.of({"nothing": 1.0}))))
    await harness.iterate(2)
    journal = harness.directory / JOURNAL
    size, told = journal.stat().st_size, harness.reasons("unmet")
    assert 10 < len(told) < 50
    assert any("shoal why --pending" in why for why in told)
    await harness.iterate(5)
    assert journal.stat().st_size == size, "nothing new was said"
    assert harness.reasons("launch"), "and what was decided before is still there"
    assert len(status_file.parse((harness.directory / STATE).read_text()).waiting) == 301
    harness.cluster.demand = Demand()
    await harness.iterate(5, seconds=30)
    harness.cluster.demand = Demand((kinds[0],))
    harness.cluster.busy = set(harness.cluster.workers)
    await harness.iterate()
    assert len(harness.reasons("unmet")) == len(told) + 1, "what had gone and comes back is news"


async def test_the_journal_replays_to_what_the_state_shows(harness: Harness) -> None:
    harness.cluster.set_pending_tasks(4)
    await harness.iterate(2)
    harness.cluster.set_pending_tasks(0)
    for worker in harness.cluster.workers[:2]:
        harness.cluster.set_idle(worker, 400)
    await harness.iterate(3)
    written = json.loads((harness.directory / STATE).read_text())
    state, unreadable = replay(harness.directory / JOURNAL)
    again = json.loads(json.dumps(status_file.journaled(state), default=lambda d: d.__dict__))
    assert unreadable == 0
    assert [n["id"] for n in again["nodes"]] == [n["id"] for n in written["nodes"]]
    assert again["nodes"] == written["nodes"]
    assert again["gone"] == written["gone"]


async def test_a_type_that_left_the_file_is_given_back(harness: Harness) -> None:
    harness.cluster.set_pending_tasks(1)
    await harness.iterate()
    harness.cluster.set_pending_tasks(0)
    (worker,) = harness.cluster.workers
    harness.cluster.set_idle(worker, 1)
    spec = cluster()
    harness.write_config(replace(spec, node_types={"head": spec.node_types["head"]}))
    await harness.iterate(3)
    assert harness.cluster.workers == []


async def test_work_that_may_move_makes_room_for_a_smaller_cluster(harness: Harness) -> None:
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
    assert harness.reasons("drain") == [], "what cannot start again stays"
    harness.cluster.pinned_nodes = {first}
    await harness.iterate(2, seconds=20)
    (why,) = harness.reasons("drain")
    assert harness.state.nodes[second].phase is Phase.DRAINING, why
    assert harness.state.nodes[first].phase is Phase.READY
    await harness.iterate(10, seconds=3600)
    assert second in harness.cluster.instances, "what runs there is not cut short"
    harness.cluster.ray[second] = replace(harness.cluster.ray[second], available={"CPU": 2.0})
    harness.cluster.actors = {second}
    await harness.iterate(3)
    assert second in harness.cluster.instances, "nor is an actor that holds nothing"
    harness.cluster.actors = set()
    await harness.iterate(2)
    assert harness.cluster.workers == [first]
