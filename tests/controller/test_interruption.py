"""Machines that their provider takes away, and says so beforehand."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from shoal.controller.interruption import Interruption, parse
from shoal.core.node_phase import Phase
from tests.controller.fake_world import Life
from tests.specs import cluster


def in_two_minutes(life: Life) -> Interruption:
    return Interruption("end", life.world.time + 120)


async def with_busy_workers(life: Life, count: int) -> list[str]:
    """Have so many workers, all of them at work."""
    life.world.wants(count)
    await life.turns(2)
    life.world.wants(0)
    life.world.busy = set(life.world.workers)
    await life.turns()
    assert len(life.world.workers) == count
    return list(life.world.workers)


async def test_a_busy_node_is_drained_at_once_and_replaced_while_it_still_works(life: Life) -> None:
    (worker,) = await with_busy_workers(life, 1)
    notice = in_two_minutes(life)
    assert life.controller.hear(worker, notice)
    await life.turns()
    assert life.world.drained == {worker: notice.at}
    assert len(life.world.workers) == 2
    await life.turns(5, seconds=20)
    assert worker in life.world.machines, "it may work until the end"
    assert len(life.world.workers) == 2, "one is replaced by one"
    await life.turns(seconds=20)
    assert worker not in life.world.machines, "nobody else took it, so we do"
    assert life.memory.gone[worker].ended.startswith("its provider takes the machine away at")
    assert "interrupted node" in life.said("launch")[-1]


async def test_an_idle_node_goes_at_once_and_only_a_minimum_is_filled_up_again(life: Life) -> None:
    (worker,) = await with_busy_workers(life, 1)
    life.world.busy = set()
    await life.turns()
    assert life.controller.hear(worker, in_two_minutes(life))
    await life.turns(2)
    assert life.world.workers == []
    life.hand(cluster(min_workers=1, max_workers=5))
    await life.turns(2)
    (first,) = life.world.workers
    assert life.controller.hear(first, in_two_minutes(life))
    await life.turns(3)
    (second,) = life.world.workers
    assert second != first


async def test_a_node_that_is_not_ready_yet_is_given_up_for_another(life: Life) -> None:
    life.world.slow_setup = asyncio.Event()
    life.world.wants(1)
    await life.turns()
    (first,) = life.world.workers
    assert life.memory.nodes[first].on_the_way
    assert life.controller.hear(first, in_two_minutes(life))
    life.world.slow_setup.set()
    await life.turns(3)
    (second,) = life.world.workers
    assert second != first
    assert life.memory.nodes[second].phase is Phase.READY


async def test_a_node_that_turned_out_busy_while_it_was_drained_does_not_come_back(
    life: Life,
) -> None:
    (worker,) = await with_busy_workers(life, 1)
    life.world.busy = set()
    life.world.idle(worker, 301)

    def interrupted(ray_id: str, why: str) -> tuple[bool, str]:
        life.world.busy = {worker}
        return False, "it runs a task"

    life.world.drain_idle = interrupted  # type: ignore[method-assign]
    life.world.time += 400
    await life.controller.turn()  # asks it to give up its place, which takes a moment
    notice = in_two_minutes(life)
    assert life.controller.hear(worker, notice)
    await life.turns()
    assert life.memory.nodes[worker].phase is Phase.DRAINING
    assert life.world.drained == {worker: notice.at}
    await life.turns(2, seconds=60)
    assert worker not in life.world.machines


async def test_all_workers_at_once_are_replaced_in_one_turn_whatever_the_limits(life: Life) -> None:
    spec = cluster(max_workers=8)
    types = {name: replace(t, max_workers=8) for name, t in spec.node_types.items()}
    slow = replace(spec.scaling, upscaling_speed=0.1, max_workers=8)
    life.hand(replace(spec, node_types=types, scaling=slow))
    life.world.wants(8)
    await life.turns(8)
    life.world.wants(0)
    before = set(life.world.workers)
    assert len(before) == 8
    life.world.busy = set(before)
    await life.turns()
    for worker in before:
        assert life.controller.hear(worker, in_two_minutes(life))
    await life.turns()
    assert len(set(life.world.workers) - before) == 8
    await life.turns(3, seconds=60)
    assert len(life.world.workers) == 8
    assert before.isdisjoint(life.world.workers)


async def test_a_controller_that_is_killed_remembers_what_it_was_told(life: Life) -> None:
    (worker,) = await with_busy_workers(life, 1)
    life.world.gcs_silent = True
    await life.turns()
    notice = in_two_minutes(life)
    assert life.controller.hear(worker, notice)
    await life.turns()
    assert life.world.drained == {}, "the GCS could not be told"
    life.again()
    life.world.gcs_silent = False
    await life.turns(2)
    assert life.world.drained == {worker: notice.at}
    assert len(life.world.workers) == 2
    assert life.controller.hear(worker, notice), "told again, nothing follows"
    await life.turns(2, seconds=60)
    assert len(life.world.workers) == 1
    assert len(life.said("drain")) == 1


async def test_a_risk_brings_a_replacement_and_cuts_nobodys_work_short(life: Life) -> None:
    (worker,) = await with_busy_workers(life, 1)
    assert life.controller.hear(worker, Interruption("risk"))
    await life.turns()
    assert worker in life.world.drained
    assert len(life.world.workers) == 2
    await life.turns(10, seconds=3600)
    assert worker in life.world.machines, "nobody has said that it must go"
    life.world.busy = set()
    await life.turns(2)
    assert worker not in life.world.machines


@pytest.mark.parametrize("kind", ["risk", "end"])
async def test_an_actor_that_holds_nothing_is_work_like_any_other(life: Life, kind: str) -> None:
    (worker,) = await with_busy_workers(life, 1)
    life.world.busy, life.world.actors = set(), {worker}
    assert life.controller.hear(
        worker, Interruption("risk") if kind == "risk" else in_two_minutes(life)
    )
    await life.turns(5, seconds=20)
    assert worker in life.world.drained
    assert worker in life.world.machines, "its resources are free, and an actor lives there"
    if kind == "risk":
        life.world.actors = set()
    await life.turns(2, seconds=20)
    assert worker not in life.world.machines


async def test_after_a_risk_the_end_may_still_be_announced(life: Life) -> None:
    (worker,) = await with_busy_workers(life, 1)
    assert life.controller.hear(worker, Interruption("risk"))
    await life.turns()
    notice = in_two_minutes(life)
    assert life.controller.hear(worker, notice)
    assert life.controller.hear(worker, Interruption("risk")), "which takes nothing back"
    await life.turns()
    assert life.world.drained == {worker: notice.at}
    await life.turns(2, seconds=60)
    assert worker not in life.world.machines


async def test_a_notice_for_the_head_is_told_and_nothing_can_be_done(life: Life) -> None:
    await life.turns()
    assert life.controller.hear("head", in_two_minutes(life))
    await life.turns()
    assert life.said("warn")[0].startswith("its provider takes the machine away at")
    assert life.memory.nodes["head"].phase is Phase.READY


async def test_a_machine_that_is_not_known_yet_is_to_tell_it_again(life: Life) -> None:
    await life.turns()
    assert not life.controller.hear("i-99", in_two_minutes(life))


def test_notices_are_lines() -> None:
    assert parse("risk\n") == Interruption("risk")
    assert parse("end 1763260000") == Interruption("end", 1763260000.0)
    for text in ("", "end", "end soon", "end inf", "nonsense 1"):
        with pytest.raises(ValueError):
            parse(text)
