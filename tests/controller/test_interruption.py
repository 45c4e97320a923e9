"""Machines that their provider takes away, and says so beforehand."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from shoal.controller.interruption import Interruption, parse
from shoal.core.node_phase import Phase
from tests.controller.fake_cluster import Harness
from tests.specs import cluster


def in_two_minutes(harness: Harness) -> Interruption:
    return Interruption("termination", harness.cluster.time + 120)


async def with_busy_workers(harness: Harness, count: int) -> list[str]:
    """Have so many workers, all of them at work."""
    harness.cluster.set_pending_tasks(count)
    await harness.iterate(2)
    harness.cluster.set_pending_tasks(0)
    harness.cluster.busy = set(harness.cluster.workers)
    await harness.iterate()
    assert len(harness.cluster.workers) == count
    return list(harness.cluster.workers)


async def test_a_busy_node_is_drained_at_once_and_replaced_while_it_still_works(
    harness: Harness,
) -> None:
    (worker,) = await with_busy_workers(harness, 1)
    notice = in_two_minutes(harness)
    assert harness.controller.on_interruption(worker, notice)
    await harness.iterate()
    assert harness.cluster.drained == {worker: notice.at}
    assert len(harness.cluster.workers) == 2
    await harness.iterate(5, seconds=20)
    assert worker in harness.cluster.instances, "it may work until the end"
    assert len(harness.cluster.workers) == 2, "one is replaced by one"
    await harness.iterate(seconds=20)
    assert worker not in harness.cluster.instances, "nobody else took it, so we do"
    assert harness.state.gone[worker].ended.startswith("the provider terminates the instance at")
    assert "interrupted node" in harness.reasons("launch")[-1]


async def test_an_idle_node_goes_at_once_and_only_a_minimum_is_filled_up_again(
    harness: Harness,
) -> None:
    (worker,) = await with_busy_workers(harness, 1)
    harness.cluster.busy = set()
    await harness.iterate()
    assert harness.controller.on_interruption(worker, in_two_minutes(harness))
    await harness.iterate(2)
    assert harness.cluster.workers == []
    harness.write_config(cluster(min_workers=1, max_workers=5))
    await harness.iterate(2)
    (first,) = harness.cluster.workers
    assert harness.controller.on_interruption(first, in_two_minutes(harness))
    await harness.iterate(3)
    (second,) = harness.cluster.workers
    assert second != first


async def test_a_node_that_is_not_ready_yet_is_given_up_for_another(harness: Harness) -> None:
    harness.cluster.setup_gate = asyncio.Event()
    harness.cluster.set_pending_tasks(1)
    await harness.iterate()
    (first,) = harness.cluster.workers
    assert harness.state.nodes[first].is_pending
    assert harness.controller.on_interruption(first, in_two_minutes(harness))
    harness.cluster.setup_gate.set()
    await harness.iterate(3)
    (second,) = harness.cluster.workers
    assert second != first
    assert harness.state.nodes[second].phase is Phase.READY


async def test_a_node_that_turned_out_busy_while_it_was_drained_does_not_come_back(
    harness: Harness,
) -> None:
    (worker,) = await with_busy_workers(harness, 1)
    harness.cluster.busy = set()
    harness.cluster.set_idle(worker, 301)

    def interrupted(ray_id: str, why: str) -> tuple[bool, str]:
        harness.cluster.busy = {worker}
        return False, "it runs a task"

    harness.cluster.drain_idle = interrupted  # type: ignore[method-assign]
    harness.cluster.time += 400
    await harness.controller.run_once()  # asks it to give up its place, which takes a moment
    notice = in_two_minutes(harness)
    assert harness.controller.on_interruption(worker, notice)
    await harness.iterate()
    assert harness.state.nodes[worker].phase is Phase.DRAINING
    assert harness.cluster.drained == {worker: notice.at}
    await harness.iterate(2, seconds=60)
    assert worker not in harness.cluster.instances


async def test_all_workers_at_once_are_replaced_in_one_turn_whatever_the_limits(
    harness: Harness,
) -> None:
    spec = cluster(max_workers=8)
    types = {name: replace(t, max_workers=8) for name, t in spec.node_types.items()}
    slow = replace(spec.scaling, upscaling_speed=0.1, max_workers=8)
    harness.write_config(replace(spec, node_types=types, scaling=slow))
    harness.cluster.set_pending_tasks(8)
    await harness.iterate(8)
    harness.cluster.set_pending_tasks(0)
    before = set(harness.cluster.workers)
    assert len(before) == 8
    harness.cluster.busy = set(before)
    await harness.iterate()
    for worker in before:
        assert harness.controller.on_interruption(worker, in_two_minutes(harness))
    await harness.iterate()
    assert len(set(harness.cluster.workers) - before) == 8
    await harness.iterate(3, seconds=60)
    assert len(harness.cluster.workers) == 8
    assert before.isdisjoint(harness.cluster.workers)


async def test_a_controller_that_is_killed_remembers_what_it_was_told(harness: Harness) -> None:
    (worker,) = await with_busy_workers(harness, 1)
    harness.cluster.gcs_unreachable = True
    await harness.iterate()
    notice = in_two_minutes(harness)
    assert harness.controller.on_interruption(worker, notice)
    await harness.iterate()
    assert harness.cluster.drained == {}, "the GCS could not be told"
    harness.restart()
    harness.cluster.gcs_unreachable = False
    await harness.iterate(2)
    assert harness.cluster.drained == {worker: notice.at}
    assert len(harness.cluster.workers) == 2
    assert harness.controller.on_interruption(worker, notice), "told again, nothing follows"
    await harness.iterate(2, seconds=60)
    assert len(harness.cluster.workers) == 1
    assert len(harness.reasons("drain")) == 1


async def test_a_risk_brings_a_replacement_and_cuts_nobodys_work_short(harness: Harness) -> None:
    (worker,) = await with_busy_workers(harness, 1)
    assert harness.controller.on_interruption(worker, Interruption("rebalance"))
    await harness.iterate()
    assert worker in harness.cluster.drained
    assert len(harness.cluster.workers) == 2
    await harness.iterate(10, seconds=3600)
    assert worker in harness.cluster.instances, "nobody has said that it must go"
    harness.cluster.busy = set()
    await harness.iterate(2)
    assert worker not in harness.cluster.instances


@pytest.mark.parametrize("kind", ["rebalance", "termination"])
async def test_an_actor_that_holds_nothing_is_work_like_any_other(
    harness: Harness, kind: str
) -> None:
    (worker,) = await with_busy_workers(harness, 1)
    harness.cluster.busy, harness.cluster.actors = set(), {worker}
    assert harness.controller.on_interruption(
        worker, Interruption("rebalance") if kind == "rebalance" else in_two_minutes(harness)
    )
    await harness.iterate(5, seconds=20)
    assert worker in harness.cluster.drained
    assert worker in harness.cluster.instances, "its resources are free, and an actor lives there"
    if kind == "rebalance":
        harness.cluster.actors = set()
    await harness.iterate(2, seconds=20)
    assert worker not in harness.cluster.instances


async def test_after_a_risk_the_end_may_still_be_announced(harness: Harness) -> None:
    (worker,) = await with_busy_workers(harness, 1)
    assert harness.controller.on_interruption(worker, Interruption("rebalance"))
    await harness.iterate()
    notice = in_two_minutes(harness)
    assert harness.controller.on_interruption(worker, notice)
    assert harness.controller.on_interruption(worker, Interruption("rebalance")), (
        "which takes nothing back"
    )
    await harness.iterate()
    assert harness.cluster.drained == {worker: notice.at}
    await harness.iterate(2, seconds=60)
    assert worker not in harness.cluster.instances


async def test_a_notice_for_the_head_is_told_and_nothing_can_be_done(harness: Harness) -> None:
    await harness.iterate()
    assert harness.controller.on_interruption("head", in_two_minutes(harness))
    await harness.iterate()
    assert harness.reasons("interruption")[0].startswith("the provider terminates the instance at")
    assert harness.state.nodes["head"].phase is Phase.READY


async def test_a_machine_that_is_not_known_yet_is_to_tell_it_again(harness: Harness) -> None:
    await harness.iterate()
    assert not harness.controller.on_interruption("i-99", in_two_minutes(harness))


def test_notices_are_lines() -> None:
    assert parse("rebalance\n") == Interruption("rebalance")
    assert parse("termination 1763260000") == Interruption("termination", 1763260000.0)
    for text in ("", "termination", "termination soon", "termination inf", "nonsense 1"):
        with pytest.raises(ValueError):
            parse(text)
