"""What the controller does when all goes well, and when a person changes their mind."""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import replace

from shoal.controller import status_file
from shoal.controller.journal import replay
from shoal.controller.node_manager import LaunchResult
from shoal.controller.paths import HANDOVER, JOURNAL, STATE
from shoal.core.errors import TransientError
from shoal.core.node_phase import Phase
from shoal.ray_runtime.gcs_client import Requested
from shoal.scaling import Demand, Gang, Request, Shape, Strategy
from tests.controller.fake_world import Life
from tests.specs import cluster


async def test_pending_work_gets_its_nodes_in_one_turn(life: Life) -> None:
    life.world.wants(3)
    await life.turns()
    assert [launch.count for launch in life.world.creates] == [3]
    life.world.wants(0)
    await life.turns()
    assert {n.phase for n in life.memory.nodes.values()} == {Phase.READY}
    assert len(life.world.ray) == 4


async def test_nodes_on_their_way_are_not_launched_again(life: Life) -> None:
    life.world.slow_setup = asyncio.Event()
    life.world.wants(2)
    await life.turns(5)
    assert len(life.world.workers) == 2
    assert {p.node_type for p in life.world.pending} == {"worker"}
    life.world.slow_setup.set()


async def test_a_gang_is_launched_whole(life: Life) -> None:
    gang = Gang((Shape.of({"CPU": 1.0}),) * 3, Strategy.STRICT_SPREAD)
    life.world.demand = Demand(gangs=(gang,))
    await life.turns()
    assert len(life.world.workers) == 3


async def test_an_idle_node_is_drained_and_then_ended(life: Life) -> None:
    life.world.wants(1)
    await life.turns()
    life.world.wants(0)
    (worker,) = life.world.workers
    life.world.idle(worker, 299)
    await life.turns(seconds=400)
    assert worker in life.world.machines
    life.world.idle(worker, 301)
    await life.turns(2)
    assert life.world.workers == []
    assert life.memory.gone[worker].ended.startswith("idle for 5 min")


async def test_a_node_that_was_slow_to_start_gets_its_idle_time_after_that(life: Life) -> None:
    life.world.wants(1)
    await life.turns()
    life.world.wants(0)
    (worker,) = life.world.workers
    life.world.idle(worker, 1000)  # as Ray counts, from the start of its daemon
    await life.turns(2, seconds=140)
    assert worker in life.world.machines
    await life.turns(2, seconds=21)
    assert life.world.workers == []


async def test_a_node_that_became_busy_again_stays(life: Life) -> None:
    life.world.wants(1)
    await life.turns()
    life.world.wants(0)
    (worker,) = life.world.workers
    life.world.idle(worker, 301)
    # Ray gives it a task between our reading and our asking.
    life.world.drain_idle = lambda ray_id, why: (False, "it runs a task")  # type: ignore[method-assign]
    await life.turns(seconds=400)
    assert life.memory.nodes[worker].phase is Phase.READY
    assert life.said("keep") == ["it has work again: it runs a task"]
    assert worker in life.world.machines


async def test_new_limits_reach_a_running_controller(life: Life) -> None:
    life.world.wants(9)
    await life.turns(2)
    assert len(life.world.workers) == 5
    life.hand(cluster(max_workers=7))
    await life.turns(2)
    assert len(life.world.workers) == 7
    life.world.wants(0)
    life.world.busy = set(life.world.workers[:6])
    for worker in life.world.workers:
        life.world.idle(worker, 1)
    life.hand(cluster(max_workers=4))
    await life.turns(3)
    assert set(life.world.workers) == life.world.busy, "only what was idle may go at once"
    life.world.busy = set(life.world.workers[:4])
    await life.turns(3)
    assert set(life.world.workers) == life.world.busy


async def test_a_cluster_that_nobody_used_for_long_is_given_back_whole(life: Life) -> None:
    spec = cluster(max_workers=5)
    life.hand(replace(spec, shoal=replace(spec.shoal, autostop=60)))
    life.world.wants(1)
    life.world.idle("head", 1000)
    await life.turns()
    (worker,) = life.world.workers
    life.world.wants(0)
    life.world.busy = {worker}
    await life.turns(2)
    assert worker in life.world.machines, "work that runs is use"
    life.world.busy = set()
    life.world.idle(worker, 59)
    await life.turns()
    assert worker in life.world.machines
    life.world.idle(worker, 60)
    life.world.driver = True
    await life.turns()
    life.world.driver, life.world.attended = False, True
    await life.turns(2, seconds=60)
    assert worker in life.world.machines, "so is a program that sleeps, and a person"
    life.world.attended = False
    await life.turns(seconds=59)
    assert worker in life.world.machines, "they may come back at once"
    await life.turns(seconds=60)
    assert life.world.machines == {}
    assert life.said("stop") == ["idle for 60 s, as autostop allows"]


async def test_whoever_runs_up_on_an_idle_cluster_has_its_whole_time(life: Life) -> None:
    spec = cluster(max_workers=5)
    await life.turns(2, seconds=5000)
    life.world.idle("head", 10000)
    life.hand(replace(spec, shoal=replace(spec.shoal, autostop=60)))
    await life.turns()
    life.again()
    await life.turns(2, seconds=29)
    assert "head" in life.world.machines, "also when the controller was restarted meanwhile"
    await life.turns(seconds=2)
    assert life.world.machines == {}


async def test_work_that_comes_while_people_are_looked_for_keeps_the_cluster(life: Life) -> None:
    spec = cluster(max_workers=5)
    life.hand(replace(spec, shoal=replace(spec.shoal, autostop=60)))
    life.world.idle("head", 1000)

    async def nobody(gcs_address: str, instances: object) -> bool:
        life.world.wants(1)
        return False

    life.world.is_attended = nobody  # type: ignore[method-assign]
    await life.turns(3, seconds=60)
    assert "head" in life.world.machines
    assert life.said("stop") == []


async def test_a_cluster_whose_node_boots_is_in_use_and_autostop_can_be_turned_off(
    life: Life,
) -> None:
    spec = cluster(max_workers=5)
    life.hand(replace(spec, shoal=replace(spec.shoal, autostop=60)))
    life.world.slow_setup = asyncio.Event()
    life.world.wants(1)
    await life.turns()
    life.world.wants(0)
    life.world.idle("head", 1000)
    await life.turns(3)
    assert "head" in life.world.machines
    life.hand(spec)
    life.world.slow_setup.set()
    await life.turns(2)
    life.world.idle(life.world.workers[0], 100)
    await life.turns(2, seconds=100)
    assert "head" in life.world.machines
    assert life.said("follow")[-1].endswith("no autostop")


async def test_a_cluster_that_does_not_go_at_first_is_tried_again(life: Life) -> None:
    spec = cluster(max_workers=5)
    life.hand(replace(spec, shoal=replace(spec.shoal, autostop=60)))
    life.world.idle("head", 1000)
    life.world.end_error = TransientError("the provider is busy")
    await life.turns(3, seconds=60)
    assert "head" in life.world.machines
    assert set(life.said("retry")) == {"the provider is busy"}
    life.world.end_error = None
    await life.turns(seconds=60)
    assert life.world.machines == {}


async def test_a_head_that_took_its_leave_and_stays_on_is_tried_again_until_it_goes(
    life: Life,
) -> None:
    spec = cluster(max_workers=5)
    life.hand(replace(spec, shoal=replace(spec.shoal, autostop=60)))
    life.world.idle("head", 1000)
    tried: list[float] = []

    async def give_back(instances: object) -> None:
        (life.directory / HANDOVER).unlink(missing_ok=True)  # as it does before the head goes
        tried.append(life.world.time)
        if len(tried) < 4:
            raise TransientError("the provider is busy")
        life.world.machines.clear()

    life.world.give_back = give_back  # type: ignore[method-assign]
    await asyncio.wait_for(life.controller.run(), 30)
    assert life.world.machines == {}
    rests = [after - before for before, after in itertools.pairwise(tried)]
    assert len(rests) == 3
    assert rests == sorted(rests)
    assert rests[0] >= 5, "a provider that is busy is not asked at every turn"


async def test_a_cluster_that_somebody_wants_again_before_it_is_gone_stays(life: Life) -> None:
    spec = cluster(max_workers=5)
    spec = replace(spec, shoal=replace(spec.shoal, autostop=60))
    life.hand(spec)
    life.world.idle("head", 1000)
    life.world.end_error = TransientError("the provider is busy")
    await life.turns(3, seconds=60)
    assert life.said("retry")
    life.world.end_error = None
    life.hand(spec)
    await life.turns(3)
    assert "head" in life.world.machines
    assert life.said("keep") == ["somebody wants it again"]


async def test_it_ends_when_its_handover_is_taken_away(life: Life) -> None:
    await life.turns()
    (life.directory / HANDOVER).unlink()
    await life.controller.run()


async def test_a_handover_that_cannot_be_read_changes_nothing(life: Life) -> None:
    await life.turns()
    (life.directory / HANDOVER).write_text("{not json")
    life.world.wants(1)
    await life.turns()
    assert len(life.world.workers) == 1


async def test_its_state_says_what_waits_and_what_comes(life: Life) -> None:
    life.world.wants(8)
    await life.turns(2)
    state = status_file.parse((life.directory / STATE).read_text())
    (row,) = state.waiting
    assert row.count == 8
    assert "max_workers" in row.outlook
    assert len(state.nodes) == 6


async def test_what_waits_is_told_of_the_nodes_that_could_hold_it_and_of_no_others(
    life: Life,
) -> None:
    spec = cluster(max_workers=5)
    gpu = replace(spec.node_types["worker"], name="gpu", resources={"CPU": 1, "GPU": 1})
    life.hand(replace(spec, node_types={**spec.node_types, "gpu": gpu}))
    life.world.slow_setup = asyncio.Event()
    small, large = Shape.of({"CPU": 1.0}), Shape.of({"GPU": 1.0})
    life.world.demand = Demand((Request(small, 2), Request(large)))
    await life.turns(2)
    life.world.demand = replace(life.world.demand, floors=(Request(small, 9),))
    await life.turns()
    rows = status_file.parse((life.directory / STATE).read_text()).waiting
    told = {row.subject: row.outlook for row in rows}
    assert "(worker, " in told[str(small)]
    assert "(gpu, " in told[str(large)]
    assert "(worker, " not in told[str(large)]
    assert "max_workers" in told[f"request_resources {small}"], (
        "a floor that cannot be met waits as well"
    )
    life.world.slow_setup.set()


async def test_ray_is_told_of_machines_that_were_asked_for(life: Life) -> None:
    asked = asyncio.Event()

    async def slow(launch: object) -> LaunchResult:
        await asked.wait()
        return LaunchResult([])

    life.world.create = slow  # type: ignore[method-assign]
    life.world.in_setup = 1
    life.world.wants(2)
    await life.turns(2)
    (machines,) = life.world.pending
    assert isinstance(machines, Requested)
    assert (machines.node_type, machines.count) == ("worker", 2)
    asked.set()


async def test_many_kinds_of_waiting_work_are_told_once_and_push_nothing_out(life: Life) -> None:
    life.world.wants(5)
    await life.turns(2)
    kinds = [Request(Shape.of({"CPU": 1.0 - n / 1000})) for n in range(300)]
    life.world.demand = Demand((*kinds, Request(Shape.of({"nothing": 1.0}))))
    await life.turns(2)
    journal = life.directory / JOURNAL
    size, told = journal.stat().st_size, life.said("cannot")
    assert 10 < len(told) < 50
    assert any("shoal why --pending" in why for why in told)
    await life.turns(5)
    assert journal.stat().st_size == size, "nothing new was said"
    assert life.said("launch"), "and what was decided before is still there"
    assert len(status_file.parse((life.directory / STATE).read_text()).waiting) == 301
    life.world.demand = Demand()
    await life.turns(5, seconds=30)
    life.world.demand = Demand((kinds[0],))
    life.world.busy = set(life.world.workers)
    await life.turns()
    assert len(life.said("cannot")) == len(told) + 1, "what had gone and comes back is news"


async def test_the_journal_replays_to_what_the_state_shows(life: Life) -> None:
    life.world.wants(4)
    await life.turns(2)
    life.world.wants(0)
    for worker in life.world.workers[:2]:
        life.world.idle(worker, 400)
    await life.turns(3)
    written = json.loads((life.directory / STATE).read_text())
    memory, unreadable = replay(life.directory / JOURNAL)
    again = json.loads(json.dumps(status_file.remembered(memory), default=lambda d: d.__dict__))
    assert unreadable == 0
    assert [n["id"] for n in again["nodes"]] == [n["id"] for n in written["nodes"]]
    assert again["nodes"] == written["nodes"]
    assert again["gone"] == written["gone"]


async def test_a_type_that_left_the_file_is_given_back(life: Life) -> None:
    life.world.wants(1)
    await life.turns()
    life.world.wants(0)
    (worker,) = life.world.workers
    life.world.idle(worker, 1)
    spec = cluster()
    life.hand(replace(spec, node_types={"head": spec.node_types["head"]}))
    await life.turns(3)
    assert life.world.workers == []


async def test_work_that_may_move_makes_room_for_a_smaller_cluster(life: Life) -> None:
    spec = cluster(max_workers=5)
    life.hand(replace(spec, shoal=replace(spec.shoal, consolidate=True)))
    life.world.wants(2)
    await life.turns(2)
    life.world.wants(0)
    first, second = life.world.workers
    for worker in (first, second):  # each is half full
        life.world.ray[worker] = replace(
            life.world.ray[worker], status="running", total={"CPU": 2.0}, available={"CPU": 1.0}
        )
    life.world.pins = {first, second}
    await life.turns(5, seconds=120)
    assert life.said("drain") == [], "what cannot start again stays"
    life.world.pins = {first}
    await life.turns(2, seconds=20)
    (why,) = life.said("drain")
    assert life.memory.nodes[second].phase is Phase.DRAINING, why
    assert life.memory.nodes[first].phase is Phase.READY
    await life.turns(10, seconds=3600)
    assert second in life.world.machines, "what runs there is not cut short"
    life.world.ray[second] = replace(life.world.ray[second], available={"CPU": 2.0})
    life.world.actors = {second}
    await life.turns(3)
    assert second in life.world.machines, "nor is an actor that holds nothing"
    life.world.actors = set()
    await life.turns(2)
    assert life.world.workers == [first]
