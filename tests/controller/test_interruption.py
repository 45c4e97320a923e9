"""Interruption notices: draining, replacement and termination of interrupted nodes."""

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
    """Launch this many workers, all of them busy."""
    harness.cluster.set_pending_tasks(count)
    await harness.iterate(2)
    harness.cluster.set_pending_tasks(0)
    harness.cluster.busy = set(harness.cluster.workers)
    await harness.iterate()
    assert len(harness.cluster.workers) == count
    return list(harness.cluster.workers)


async def test_a_busy_node_is_drained_and_replaced_while_its_work_continues(
    harness: Harness,
) -> None:
    (worker,) = await with_busy_workers(harness, 1)
    notice = in_two_minutes(harness)
    assert harness.controller.on_interruption(worker, notice)
    await harness.iterate()
    assert harness.cluster.drained == {worker: notice.at}
    assert len(harness.cluster.workers) == 2
    await harness.iterate(5, seconds=20)
    assert worker in harness.cluster.instances, "its work may run until the termination"
    assert len(harness.cluster.workers) == 2, "one replacement is enough"
    await harness.iterate(seconds=20)
    assert worker not in harness.cluster.instances, "at the deadline, the controller terminates it"
    assert harness.state.gone[worker].ended.startswith("the provider terminates the instance at")
    assert "interrupted node" in harness.reasons("launch")[-1]


async def test_an_idle_node_is_terminated_at_once_and_replaced_only_for_min_workers(
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


async def test_an_interrupted_pending_node_is_terminated_and_replaced(harness: Harness) -> None:
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


async def test_a_node_interrupted_during_a_rejected_drain_stays_draining(
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
    await harness.controller.run_once()  # starts to drain it, in a task
    notice = in_two_minutes(harness)
    assert harness.controller.on_interruption(worker, notice)
    await harness.iterate()
    assert harness.state.nodes[worker].phase is Phase.DRAINING
    assert harness.cluster.drained == {worker: notice.at}
    await harness.iterate(2, seconds=60)
    assert worker not in harness.cluster.instances


async def test_replacements_of_all_workers_are_launched_at_once_whatever_the_limits(
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


async def test_a_killed_controller_remembers_interruptions(harness: Harness) -> None:
    (worker,) = await with_busy_workers(harness, 1)
    harness.cluster.gcs_unreachable = True
    await harness.iterate()
    notice = in_two_minutes(harness)
    assert harness.controller.on_interruption(worker, notice)
    await harness.iterate()
    assert harness.cluster.drained == {}, "the GCS was unreachable"
    harness.restart()
    harness.cluster.gcs_unreachable = False
    await harness.iterate(2)
    assert harness.cluster.drained == {worker: notice.at}
    assert len(harness.cluster.workers) == 2
    assert harness.controller.on_interruption(worker, notice), "a repeated notice changes nothing"
    await harness.iterate(2, seconds=60)
    assert len(harness.cluster.workers) == 1
    assert len(harness.reasons("drain")) == 1


async def test_a_rebalance_recommendation_launches_a_replacement_and_does_not_cut_work_short(
    harness: Harness,
) -> None:
    (worker,) = await with_busy_workers(harness, 1)
    assert harness.controller.on_interruption(worker, Interruption("rebalance"))
    await harness.iterate()
    assert worker in harness.cluster.drained
    assert len(harness.cluster.workers) == 2
    await harness.iterate(10, seconds=3600)
    assert worker in harness.cluster.instances, "it has no termination time"
    harness.cluster.busy = set()
    await harness.iterate(2)
    assert worker not in harness.cluster.instances


@pytest.mark.parametrize("kind", ["rebalance", "termination"])
async def test_an_actor_without_resources_keeps_its_node_alive(harness: Harness, kind: str) -> None:
    (worker,) = await with_busy_workers(harness, 1)
    harness.cluster.busy, harness.cluster.actors = set(), {worker}
    assert harness.controller.on_interruption(
        worker, Interruption("rebalance") if kind == "rebalance" else in_two_minutes(harness)
    )
    await harness.iterate(5, seconds=20)
    assert worker in harness.cluster.drained
    assert worker in harness.cluster.instances, "its resources are free, but an actor runs on it"
    if kind == "rebalance":
        harness.cluster.actors = set()
    await harness.iterate(2, seconds=20)
    assert worker not in harness.cluster.instances


async def test_a_termination_notice_may_follow_a_rebalance_recommendation(harness: Harness) -> None:
    (worker,) = await with_busy_workers(harness, 1)
    assert harness.controller.on_interruption(worker, Interruption("rebalance"))
    await harness.iterate()
    notice = in_two_minutes(harness)
    assert harness.controller.on_interruption(worker, notice)
    assert harness.controller.on_interruption(worker, Interruption("rebalance")), (
        "which does not revoke the termination"
    )
    await harness.iterate()
    assert harness.cluster.drained == {worker: notice.at}
    await harness.iterate(2, seconds=60)
    assert worker not in harness.cluster.instances


async def test_an_interruption_of_the_head_is_recorded_but_cannot_be_handled(
    harness: Harness,
) -> None:
    await harness.iterate()
    assert harness.controller.on_interruption("head", in_two_minutes(harness))
    await harness.iterate()
    assert harness.reasons("interruption")[0].startswith("the provider terminates the instance at")
    assert harness.state.nodes["head"].phase is Phase.READY


async def test_a_notice_for_an_unknown_node_is_rejected_so_that_its_agent_repeats_it(
    harness: Harness,
) -> None:
    await harness.iterate()
    assert not harness.controller.on_interruption("i-99", in_two_minutes(harness))


def test_a_notice_is_a_line_of_text() -> None:
    assert parse("rebalance\n") == Interruption("rebalance")
    assert parse("termination 1763260000") == Interruption("termination", 1763260000.0)
    for text in ("", "termination", "termination soon", "termination inf", "nonsense 1"):
        with pytest.raises(ValueError):
            parse(text)
