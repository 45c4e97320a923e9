"""What goes wrong, and what the controller makes of it."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.controller import status_file
from shoal.controller.executor import MOST_SETUP_FAILURES
from shoal.controller.lifecycle import DEADLINES, Node
from shoal.controller.node_manager import LaunchResult
from shoal.controller.paths import STATE
from shoal.controller.planner_input import within_reach
from shoal.controller.reconcile import MOST_TRIES
from shoal.core.errors import AuthError, CapacityError, TransientError
from shoal.core.node_phase import Phase
from shoal.providers.model import LaunchRequest, State
from shoal.scaling.inputs import Offering
from shoal.spec.cluster_spec import ProviderSpec
from tests.controller.fake_world import Life, World, never
from tests.specs import cluster, node_type


def two_types(max_workers: int = 5):  # type: ignore[no-untyped-def]
    spec = cluster(max_workers=max_workers)
    other = replace(node_type("other", max_workers=5), resources={"CPU": 2})
    return replace(spec, node_types={**spec.node_types, "other": other})


async def test_a_type_without_capacity_is_replaced_by_the_next_best(tmp_path: Path) -> None:
    life = Life(World(), tmp_path, two_types())
    life.world.refusals["worker"] = CapacityError("none left")
    life.world.wants(1)
    await life.turns(2)
    assert [launch.node_type for launch in life.world.creates] == ["worker", "other"]
    assert len(life.world.workers) == 1


async def test_fewer_machines_than_asked_for_are_used_and_the_rest_is_tried_elsewhere(
    tmp_path: Path,
) -> None:
    life = Life(World(most_at_once=1), tmp_path, two_types())
    life.world.wants(2)
    await life.turns(2)
    assert [(x.node_type, x.count) for x in life.world.creates] == [("worker", 2), ("other", 1)]
    assert len(life.world.workers) == 2


@pytest.mark.parametrize("meanwhile", ["it runs", "it is restarted"])
async def test_wrong_credentials_are_not_tried_again_until_somebody_runs_up(
    life: Life, meanwhile: str
) -> None:
    life.world.refusals["worker"] = AuthError("denied", fix="log in")
    life.world.wants(1)
    await life.turns(3, seconds=2000)
    assert len(life.world.creates) == 1
    assert "log in" in life.said("give up")[0]
    life.again()
    await life.turns(2, seconds=2000)
    assert len(life.world.creates) == 1, "a controller that was restarted has learned nothing new"
    life.world.refusals.clear()
    life.hand(life.handover.spec)
    if meanwhile == "it is restarted":
        life.again()
    await life.turns()
    assert len(life.world.workers) == 1


async def test_a_node_that_cannot_be_set_up_is_replaced_and_its_log_kept(life: Life) -> None:
    life.world.setup_failures = 1
    life.world.wants(1)
    await life.turns(2)
    assert life.world.workers == []
    (log,) = (life.directory / "logs").iterdir()
    assert "no such package" in log.read_text()
    await life.turns(2, seconds=40)
    assert len(life.world.workers) == 1
    assert life.memory.failures == ()


async def test_setups_that_keep_failing_are_given_up(life: Life) -> None:
    life.world.setup_failures = 100
    life.world.wants(1)
    await life.turns(12, seconds=500)
    assert len(life.world.creates) == MOST_SETUP_FAILURES
    assert life.world.workers == []
    assert "3 nodes in a row" in life.said("give up")[0]


async def test_setups_that_fail_count_wherever_the_machine_came_from(life: Life) -> None:
    life.world.market, life.world.zone = "spot", "b"
    life.world.sold = [Offering("worker", "spot", price_per_hour=0.1, resources={"CPU": 1.0})]
    life.world.wants(0)
    await life.turns(2)
    life.world.setup_failures = 100
    life.world.wants(1)
    await life.turns(20)
    assert len(life.world.creates) == 1, "after a failure it rests"
    await life.turns(12, seconds=500)
    assert [launch.market for launch in life.world.creates] == ["spot"] * MOST_SETUP_FAILURES
    assert life.world.workers == []
    (row,) = status_file.parse((life.directory / STATE).read_text()).waiting
    assert "worker is not launched any more: 3 nodes in a row" in row.outlook
    assert "shoal up" in row.fix


async def test_a_node_whose_ray_died_is_brought_back_and_given_up_when_it_keeps_dying(
    life: Life,
) -> None:
    life.world.wants(1)
    await life.turns()
    life.world.wants(0)
    (worker,) = life.world.workers
    for n in range(MOST_TRIES):
        del life.world.ray[worker]
        await life.turns(2, seconds=20)
        assert life.world.brought_up.count("worker-1") == n + 2
        assert worker in life.world.ray
    del life.world.ray[worker]
    await life.turns(3, seconds=20)
    assert life.world.workers == []


async def test_a_machine_that_vanished_is_replaced(life: Life) -> None:
    life.world.wants(1)
    await life.turns()
    (worker,) = life.world.workers
    del life.world.machines[worker], life.world.ray[worker]
    await life.turns(3, seconds=61)
    assert life.memory.gone[worker].ended == "its machine is no longer there"
    assert len(life.world.workers) == 1


async def test_a_list_that_lost_a_node_which_ray_knows_is_not_believed(life: Life) -> None:
    life.world.wants(1)
    await life.turns()
    life.world.wants(0)
    (worker,) = life.world.workers
    life.world.busy = {worker}
    hidden = life.world.machines.pop(worker)
    await life.turns(3, seconds=61)
    life.world.gcs_silent = True
    await life.turns(2, seconds=21)
    assert life.memory.nodes[worker].phase is Phase.READY
    assert "worker-1 is not in the provider's list" in life.said("odd")[0]
    life.world.gcs_silent = False
    life.world.machines[worker] = hidden
    await life.turns(3, seconds=61)
    assert len(life.world.creates) == 1
    life.world.machines[worker] = replace(hidden, state=State.TERMINATED)
    await life.turns(1, seconds=21)
    assert worker not in life.memory.nodes, "what is said outright is believed"


async def test_a_list_in_doubt_is_soon_followed_by_another(tmp_path: Path) -> None:
    elsewhere = replace(cluster(max_workers=5), provider=ProviderSpec("external", {}))
    life = Life(World(), tmp_path, elsewhere)
    life.world.wants(1)
    await life.turns(5, seconds=20)
    life.world.wants(0)
    (worker,) = life.world.workers
    del life.world.machines[worker]
    await life.turns(2, seconds=20)
    assert worker in life.memory.nodes, "Ray still knows it"
    del life.world.ray[worker]
    await life.turns(seconds=6)
    assert life.memory.gone[worker].ended == "its machine is no longer there"
    assert life.world.brought_up == ["worker-1"], "nobody looks for what is gone"


async def test_a_list_that_never_comes_is_asked_for_again(life: Life) -> None:
    await life.turns()
    find, life.world.find = life.world.find, asyncio.Event().wait  # type: ignore[method-assign,assignment]
    await life.turns(2, seconds=30)
    life.world.find = find  # type: ignore[method-assign]
    life.world._add("i-9", "worker-9", "worker")
    await life.turns(5, seconds=40)
    assert "i-9" in life.memory.nodes
    assert life.said("odd") == ["no answer; it is asked again"]


async def test_a_provider_that_never_answers_a_launch_is_given_up_for_another_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DEADLINES, Phase.REQUESTED, (0.05, Phase.FAILED))
    life = Life(World(), tmp_path, two_types())
    create = life.world.create

    async def hangs_for_one(launch: LaunchRequest) -> LaunchResult:
        return await (never() if launch.node_type == "worker" else create(launch))

    life.world.create = hangs_for_one  # type: ignore[method-assign]
    life.world.wants(1)
    await life.turns(3)
    assert [life.memory.nodes[id].node_type for id in life.world.workers] == ["other"]
    assert life.memory.intents == {}
    assert "no answer within" in life.said("failed")[0]


async def test_a_list_that_lags_does_not_lose_a_new_machine(life: Life) -> None:
    life.world.wants(1)
    await life.turns()
    (worker,) = life.world.workers
    hidden = life.world.machines.pop(worker)
    await life.turns(3)
    life.world.machines[worker] = hidden
    await life.turns(3)
    assert len(life.world.creates) == 1
    assert life.memory.nodes[worker].phase is Phase.READY


@pytest.mark.parametrize("error", [TransientError("throttled"), KeyError("throttled")])
async def test_a_list_that_fails_is_told_and_nothing_is_launched_blindly(
    tmp_path: Path, error: Exception
) -> None:
    world = World(list_error=error)
    life = Life(world, tmp_path)
    world.wants(1)
    await life.turns(3)
    assert world.creates == []
    (told,) = life.said("odd")
    assert "throttled" in told
    world.list_error = None
    await life.turns(3)
    assert len(world.workers) == 1


async def test_a_provider_that_first_says_nothing_of_its_machines_is_asked_again(
    tmp_path: Path,
) -> None:
    spec = cluster(max_workers=5)
    unknown = replace(spec.node_types["worker"], resources={})
    life = Life(World(), tmp_path, replace(spec, node_types={**spec.node_types, "worker": unknown}))
    life.world.wants(1)
    await life.turns(3)
    assert life.world.creates == [], "nobody knows whether it has a CPU"
    life.world.sold = [Offering("worker", price_per_hour=0.1, resources={"CPU": 1.0})]
    await life.turns(3, seconds=30)
    assert len(life.world.workers) == 1


async def test_prices_are_asked_for_again(life: Life) -> None:
    life.world.sold = [Offering("worker", price_per_hour=0.1)]
    await life.turns(2)
    life.world.sold = [Offering("worker", price_per_hour=0.2)]
    await life.turns(3, seconds=1800)
    life.world.wants(1)
    life.world.create = never  # type: ignore[assignment, method-assign]
    life.world.in_setup = 1
    await life.turns()
    (intent,) = life.memory.intents.values()
    assert intent.price_per_hour == 0.2


async def test_a_silent_gcs_stops_all_decisions_but_no_node(life: Life) -> None:
    life.world.wants(2)
    await life.turns()
    life.world.gcs_silent = True
    await life.turns(5, seconds=30)
    assert len(life.world.workers) == 2
    assert len(life.world.creates) == 1


async def test_a_drain_that_ray_did_not_hear_of_is_tried_again(life: Life) -> None:
    life.world.wants(1)
    await life.turns()
    life.world.wants(0)
    (worker,) = life.world.workers
    life.world.idle(worker, 1000)
    life.world.drains_fail = True
    await life.turns(2, seconds=400)
    assert life.memory.nodes[worker].phase is Phase.READY
    assert set(life.said("retry")) == {"not drained yet: Ray on the head does not answer"}
    life.world.drains_fail = False
    await life.turns(3, seconds=400)
    assert life.world.workers == []


@pytest.mark.parametrize("told", [True, False])
async def test_killed_while_it_asked_ray_to_drain_it_goes_by_what_ray_says(
    life: Life, told: bool
) -> None:
    life.world.wants(1)
    await life.turns()
    life.world.wants(0)
    (worker,) = life.world.workers
    life.world.idle(worker, 1000)
    asking, killed, ask = threading.Event(), threading.Event(), life.world.drain_idle

    def interrupted(ray_id: str, why: str) -> tuple[bool, str]:
        answer = ask(ray_id, why) if told else (False, "")
        asking.set()
        killed.wait(10)
        return answer

    life.world.drain_idle = interrupted  # type: ignore[method-assign]
    life.world.time += 400
    await life.controller.turn()
    assert await asyncio.to_thread(asking.wait, 10)
    await life.controller.close()
    killed.set()
    life.world.drain_idle = ask  # type: ignore[method-assign]
    if not told:
        life.world.busy = {worker}
    life.again()
    assert life.memory.nodes[worker].phase is Phase.DRAINING
    await life.turns(3, seconds=10)
    if told:
        assert life.world.workers == []
        return
    assert life.memory.nodes[worker].phase is Phase.READY
    assert life.memory.nodes[worker].ended == ""
    life.world.busy = set()
    await life.turns(4, seconds=400)
    assert life.world.workers == [], "and is asked again when it is idle"


async def test_a_head_whose_ray_died_is_revived(life: Life) -> None:
    life.world.wants(1)
    await life.turns()
    life.world.head_dead = True
    life.world.ray.clear()
    await life.turns(8, seconds=2)
    assert set(life.world.ray) == set(life.world.machines)
    assert len(life.world.creates) == 1
    assert life.said("restart") == ["the head's Ray has died; all nodes start theirs again"]


async def test_a_head_is_revived_of_which_only_the_gcs_is_left(life: Life) -> None:
    await life.turns()
    del life.world.ray["head"]
    await life.turns(8, seconds=2)
    assert "head" in life.world.ray
    assert len(life.said("restart")) == 1


async def test_nodes_that_fail_for_want_of_the_head_are_not_held_against_their_type(
    life: Life,
) -> None:
    for wanted in range(1, MOST_SETUP_FAILURES + 1):
        life.world.slow_setup, life.world.setup_failures = asyncio.Event(), 1
        life.world.wants(wanted)
        await life.turns()
        life.world.head_dead = True
        life.world.slow_setup.set()
        await life.turns(8, seconds=2)
        assert len(life.said("failed")) == wanted
    assert life.memory.failures == ()
    assert len(life.world.workers) == MOST_SETUP_FAILURES


async def test_a_head_that_dies_again_while_its_nodes_come_back_is_revived_again(
    life: Life,
) -> None:
    life.world.wants(1)
    await life.turns()
    life.world.slow_setup = asyncio.Event()
    for deaths in (1, 2):
        life.world.head_dead = True
        await life.turns(8, seconds=2)
        assert not life.world.head_dead
        assert len(life.said("restart")) == deaths
    life.world.slow_setup.set()
    await life.turns(2)
    assert set(life.world.ray) == set(life.world.machines)


def test_of_ones_own_machines_those_that_are_being_let_go_are_not_counted_on() -> None:
    spec, hosts = cluster(max_workers=2), ["10.0.0.2", "10.0.0.3"]
    leaving = Node("10.0.0.2", "worker-1", "worker", "worker", Phase.TERMINATING, 0.0, 0.0)
    assert within_reach(spec, hosts, {}, {}).scaling.max_workers == 2
    assert within_reach(spec, hosts, {}, {leaving.id: leaving}).scaling.max_workers == 1


async def test_a_machine_that_nobody_needs_any_more_is_cancelled_before_it_is_a_node(
    life: Life,
) -> None:
    life.world.slow_setup = asyncio.Event()
    life.world.wants(1)
    await life.turns()
    life.world.wants(0)
    await life.turns(8, seconds=60)
    assert life.world.workers == []
    assert life.said("cancel")
