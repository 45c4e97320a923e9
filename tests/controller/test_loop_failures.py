"""The loop under faults of the provider, Ray, setups and the head."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.controller import status_file
from shoal.controller.executor import MAX_SETUP_FAILURES
from shoal.controller.lifecycle import DEADLINES
from shoal.controller.node_manager import LaunchResult
from shoal.controller.paths import STATE
from shoal.controller.reconcile import MAX_RESTARTS
from shoal.core.errors import (
    AuthError,
    CapacityError,
    ConfigError,
    SetupError,
    TransientError,
)
from shoal.core.node_phase import Phase
from shoal.providers.model import LaunchRequest, State
from shoal.scaling.inputs import Offering
from shoal.spec.cluster_spec import ProviderSpec
from tests.controller.fake_cluster import FakeCluster, Harness, never_return
from tests.specs import cluster, node_type


def two_types(max_workers: int = 5):  # type: ignore[no-untyped-def]
    spec = cluster(max_workers=max_workers)
    other = replace(node_type("other", max_workers=5), resources={"CPU": 3})
    return replace(spec, node_types={**spec.node_types, "other": other})


async def test_without_capacity_the_next_best_type_is_launched(tmp_path: Path) -> None:
    harness = Harness(FakeCluster(), tmp_path, two_types())
    harness.cluster.refusals["worker"] = CapacityError("none left")
    harness.cluster.set_pending_tasks(1)
    await harness.iterate(2)
    assert [launch.node_type for launch in harness.cluster.launch_requests] == ["worker", "other"]
    assert len(harness.cluster.workers) == 1


async def test_a_partial_launch_is_used_and_the_rest_is_launched_as_another_type(
    tmp_path: Path,
) -> None:
    harness = Harness(FakeCluster(max_per_launch=1), tmp_path, two_types())
    harness.cluster.set_pending_tasks(2)
    await harness.iterate(2)
    assert [(x.node_type, x.count) for x in harness.cluster.launch_requests] == [
        ("worker", 2),
        ("other", 1),
    ]
    assert len(harness.cluster.workers) == 2


@pytest.mark.parametrize("meanwhile", ["it runs", "it is restarted"])
async def test_a_lasting_auth_error_is_not_retried_before_the_next_up(
    harness: Harness, meanwhile: str
) -> None:
    harness.cluster.refusals["worker"] = AuthError("denied", fix="log in")
    harness.cluster.set_pending_tasks(1)
    await harness.iterate(8, seconds=2000)
    attempts = len(harness.cluster.launch_requests)
    assert attempts < 8
    assert "log in" in harness.reasons("block")[0]
    harness.restart()
    await harness.iterate(2, seconds=2000)
    assert len(harness.cluster.launch_requests) == attempts, "a restart changes nothing"
    harness.cluster.refusals.clear()
    harness.write_config(harness.config.spec)
    if meanwhile == "it is restarted":
        harness.restart()
    await harness.iterate()
    assert len(harness.cluster.workers) == 1


async def test_an_auth_error_that_passes_is_retried(harness: Harness) -> None:
    """A role that was just created is denied what it may do, for a while."""
    harness.cluster.refusals["worker"] = AuthError("denied", fix="log in")
    harness.cluster.set_pending_tasks(1)
    await harness.iterate()
    assert len(harness.cluster.launch_requests) == 1
    harness.cluster.refusals.clear()
    await harness.iterate(2, seconds=2000)
    assert len(harness.cluster.workers) == 1
    assert harness.reasons("block") == []


async def test_a_config_error_is_not_retried_before_the_next_up(harness: Harness) -> None:
    harness.cluster.refusals["worker"] = ConfigError("no such AMI", fix="name another")
    harness.cluster.set_pending_tasks(1)
    await harness.iterate(3, seconds=2000)
    assert len(harness.cluster.launch_requests) == 1
    assert "name another" in harness.reasons("block")[0]


async def test_a_node_whose_setup_failed_is_replaced_and_its_log_is_kept(harness: Harness) -> None:
    harness.cluster.setup_failures = 1
    harness.cluster.set_pending_tasks(1)
    await harness.iterate(2)
    assert harness.cluster.workers == []
    (log,) = (harness.directory / "logs").iterdir()
    assert "no such package" in log.read_text()
    await harness.iterate(2, seconds=40)
    assert len(harness.cluster.workers) == 1
    assert harness.state.failures == ()


async def test_a_type_whose_setups_keep_failing_is_blocked(harness: Harness) -> None:
    harness.cluster.setup_failures = 100
    harness.cluster.set_pending_tasks(1)
    await harness.iterate(12, seconds=500)
    assert len(harness.cluster.launch_requests) == MAX_SETUP_FAILURES
    assert harness.cluster.workers == []
    assert "setup failed on 3 nodes in a row" in harness.reasons("block")[0]


async def test_setup_failures_count_in_every_market_and_zone(harness: Harness) -> None:
    harness.cluster.market, harness.cluster.zone = "spot", "b"
    harness.cluster.offered = [
        Offering("worker", "spot", price_per_hour=0.1, resources={"CPU": 1.0})
    ]
    harness.cluster.set_pending_tasks(0)
    await harness.iterate(2)
    harness.cluster.setup_failures = 100
    harness.cluster.set_pending_tasks(1)
    await harness.iterate(20)
    assert len(harness.cluster.launch_requests) == 1, "a failure starts a backoff"
    await harness.iterate(12, seconds=500)
    assert [launch.market for launch in harness.cluster.launch_requests] == [
        "spot"
    ] * MAX_SETUP_FAILURES
    assert harness.cluster.workers == []
    (row,) = status_file.parse((harness.directory / STATE).read_text()).waiting
    assert "worker is not launched any more: setup failed on 3 nodes in a row" in row.outlook
    assert "shoal up" in row.fix


async def test_a_node_whose_ray_died_is_restarted_and_terminated_when_it_keeps_dying(
    harness: Harness,
) -> None:
    harness.cluster.set_pending_tasks(1)
    await harness.iterate()
    harness.cluster.set_pending_tasks(0)
    (worker,) = harness.cluster.workers
    for n in range(MAX_RESTARTS):
        del harness.cluster.ray[worker]
        await harness.iterate(2, seconds=20)
        assert harness.cluster.bootstrapped.count("worker-1") == n + 2
        assert worker in harness.cluster.ray
    assert harness.reasons("restart") == ["its Ray was lost; restarting it"] * MAX_RESTARTS
    del harness.cluster.ray[worker]
    await harness.iterate(3, seconds=20)
    assert harness.cluster.workers == []


async def test_a_node_that_cannot_be_restarted_is_replaced_at_once(harness: Harness) -> None:
    """Its instance was terminated, e.g. in the cloud's console: that is no failure of setup."""
    harness.cluster.set_pending_tasks(1)
    await harness.iterate(2)
    (worker,) = harness.cluster.workers
    harness.cluster.setup_failures = 1
    del harness.cluster.ray[worker]
    await harness.iterate(2, seconds=16)
    assert len(harness.reasons("failed")) == 1
    await harness.iterate(3)
    assert len(harness.cluster.workers) == 1 and worker not in harness.cluster.workers


async def test_work_of_a_node_whose_ray_died_waits_for_its_restart_and_not_for_a_higher_limit(
    harness: Harness,
) -> None:
    harness.write_config(cluster(max_workers=1))
    harness.cluster.set_pending_tasks(1)
    await harness.iterate(2)
    (worker,) = harness.cluster.workers
    harness.cluster.set_pending_tasks(0)
    await harness.iterate(2)
    del harness.cluster.ray[worker]
    harness.cluster.set_pending_tasks(1)
    explained = []
    for _ in range(8):
        await harness.iterate(seconds=5)
        waiting = status_file.parse((harness.directory / STATE).read_text()).waiting
        explained += [f"{row.outlook} {row.fix}" for row in waiting]
    assert explained
    assert not [text for text in explained if "max_workers" in text]
    assert harness.reasons("restart") == ["its Ray was lost; restarting it"]


async def test_an_instance_that_disappeared_is_replaced(harness: Harness) -> None:
    harness.cluster.set_pending_tasks(1)
    await harness.iterate()
    (worker,) = harness.cluster.workers
    del harness.cluster.instances[worker], harness.cluster.ray[worker]
    await harness.iterate(3, seconds=61)
    assert harness.state.gone[worker].ended == "its instance no longer exists"
    assert len(harness.cluster.workers) == 1


@pytest.mark.parametrize("meanwhile", ["nothing", "its Ray is being restarted"])
async def test_a_worker_that_was_powered_off_is_terminated_and_replaced(
    harness: Harness, meanwhile: str
) -> None:
    """Clouds keep an instance that its guest has shut down, and bill its disks."""
    cluster = harness.cluster
    cluster.set_pending_tasks(1)
    await harness.iterate()
    (worker,) = cluster.workers
    del cluster.ray[worker]
    if meanwhile != "nothing":
        cluster.setup_gate = asyncio.Event()  # nothing on the instance answers
        await harness.iterate(2, seconds=20)
        assert cluster.in_setup == 1
        cluster.setup_gate = None
    cluster.instances[worker] = replace(cluster.instances[worker], state=State.STOPPED)
    await harness.iterate(3, seconds=31)
    assert harness.state.gone[worker].ended == "its instance was powered off"
    assert len(cluster.workers) == 1 and worker not in cluster.workers
    assert not harness.state.failures


async def test_a_stopped_worker_that_starts_again_may_be_listed_as_off_for_a_while(
    harness: Harness,
) -> None:
    cluster = harness.cluster
    cluster.set_pending_tasks(1)
    await harness.iterate()
    (worker,) = cluster.workers
    running = cluster.instances[worker]
    cluster.instances[worker] = replace(running, state=State.STOPPED)
    await harness.iterate(3, seconds=10)
    cluster.instances[worker] = running
    await harness.iterate(3, seconds=31)
    assert cluster.workers == [worker]


async def test_a_listing_without_a_node_that_ray_reports_is_not_believed(harness: Harness) -> None:
    harness.cluster.set_pending_tasks(1)
    await harness.iterate()
    harness.cluster.set_pending_tasks(0)
    (worker,) = harness.cluster.workers
    harness.cluster.busy = {worker}
    hidden = harness.cluster.instances.pop(worker)
    await harness.iterate(3, seconds=61)
    harness.cluster.gcs_unreachable = True
    await harness.iterate(2, seconds=21)
    assert harness.state.nodes[worker].phase is Phase.READY
    assert (
        "worker-1 is in Ray but not in the provider's instance list"
        in harness.reasons("anomaly")[0]
    )
    harness.cluster.gcs_unreachable = False
    harness.cluster.instances[worker] = hidden
    await harness.iterate(3, seconds=61)
    assert len(harness.cluster.launch_requests) == 1
    harness.cluster.instances[worker] = replace(hidden, state=State.TERMINATED)
    await harness.iterate(1, seconds=21)
    assert worker not in harness.state.nodes, "an explicit terminated state is believed"


async def test_after_an_anomaly_the_next_listing_follows_soon(tmp_path: Path) -> None:
    elsewhere = replace(cluster(max_workers=5), provider=ProviderSpec("external", {}))
    harness = Harness(FakeCluster(), tmp_path, elsewhere)
    harness.cluster.set_pending_tasks(1)
    await harness.iterate(5, seconds=20)
    harness.cluster.set_pending_tasks(0)
    (worker,) = harness.cluster.workers
    del harness.cluster.instances[worker]
    await harness.iterate(2, seconds=20)
    assert worker in harness.state.nodes, "Ray still reports it"
    del harness.cluster.ray[worker]
    await harness.iterate(seconds=6)
    assert harness.state.gone[worker].ended == "its instance no longer exists"
    assert harness.cluster.bootstrapped == ["worker-1"], (
        "a terminated node is not bootstrapped again"
    )


async def test_a_listing_without_an_answer_is_repeated(harness: Harness) -> None:
    await harness.iterate()
    find, harness.cluster.list_instances = harness.cluster.list_instances, asyncio.Event().wait  # type: ignore[method-assign,assignment]
    await harness.iterate(2, seconds=30)
    harness.cluster.list_instances = find  # type: ignore[method-assign]
    harness.cluster.add_instance("i-9", "worker-9", "worker")
    await harness.iterate(5, seconds=40)
    assert "i-9" in harness.state.nodes
    assert harness.reasons("anomaly") == ["no answer within 120 s; listing again"]


async def test_a_launch_without_an_answer_falls_back_to_another_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DEADLINES, Phase.REQUESTED, (0.05, Phase.FAILED))
    harness = Harness(FakeCluster(), tmp_path, two_types())
    launch = harness.cluster.launch

    async def hangs_for_one(request: LaunchRequest) -> LaunchResult:
        return await (never_return() if request.node_type == "worker" else launch(request))

    harness.cluster.launch = hangs_for_one  # type: ignore[method-assign]
    harness.cluster.set_pending_tasks(1)
    await harness.iterate(3)
    assert [harness.state.nodes[id].node_type for id in harness.cluster.workers] == ["other"]
    assert harness.state.intents == {}
    assert "no answer within" in harness.reasons("failed")[0]


async def test_a_lagging_listing_does_not_lose_a_new_instance(harness: Harness) -> None:
    harness.cluster.set_pending_tasks(1)
    await harness.iterate()
    (worker,) = harness.cluster.workers
    hidden = harness.cluster.instances.pop(worker)
    await harness.iterate(3)
    harness.cluster.instances[worker] = hidden
    await harness.iterate(3)
    assert len(harness.cluster.launch_requests) == 1
    assert harness.state.nodes[worker].phase is Phase.READY


@pytest.mark.parametrize("error", [TransientError("throttled"), KeyError("throttled")])
async def test_a_failed_listing_is_reported_and_nothing_is_launched(
    tmp_path: Path, error: Exception
) -> None:
    fake = FakeCluster(list_error=error)
    harness = Harness(fake, tmp_path)
    fake.set_pending_tasks(1)
    await harness.iterate(3)
    assert fake.launch_requests == []
    (anomaly,) = harness.reasons("anomaly")
    assert "throttled" in anomaly
    assert "throttled" in harness.status.error, "`shoal status` shows it"
    (waiting,) = harness.status.waiting
    assert waiting.outlook.startswith("the controller does not plan at the moment: ")
    assert "throttled" in waiting.outlook
    fake.list_error = None
    await harness.iterate(3)
    assert len(fake.workers) == 1
    assert harness.status.error == ""


async def test_a_failed_request_for_offerings_is_retried(
    tmp_path: Path,
) -> None:
    spec = cluster(max_workers=5)
    unknown = replace(spec.node_types["worker"], resources={})
    harness = Harness(
        FakeCluster(), tmp_path, replace(spec, node_types={**spec.node_types, "worker": unknown})
    )
    harness.cluster.set_pending_tasks(1)
    await harness.iterate(3)
    assert harness.cluster.launch_requests == [], "it is not known whether it has a CPU"
    harness.cluster.offered = [Offering("worker", price_per_hour=0.1, resources={"CPU": 1.0})]
    await harness.iterate(3, seconds=30)
    assert len(harness.cluster.workers) == 1


async def test_prices_are_refreshed(harness: Harness) -> None:
    harness.cluster.offered = [Offering("worker", price_per_hour=0.1)]
    await harness.iterate(2)
    harness.cluster.offered = [Offering("worker", price_per_hour=0.2)]
    await harness.iterate(3, seconds=1800)
    harness.cluster.set_pending_tasks(1)
    harness.cluster.launch = never_return  # type: ignore[assignment, method-assign]
    harness.cluster.in_setup = 2  # before Python 3.12, `wait_for` runs the call in a task
    await harness.iterate()
    (intent,) = harness.state.intents.values()
    assert intent.price_per_hour == 0.2


async def test_an_unreachable_gcs_stops_all_decisions_but_no_node(harness: Harness) -> None:
    harness.cluster.set_pending_tasks(2)
    await harness.iterate()
    harness.cluster.gcs_unreachable = True
    await harness.iterate(5, seconds=30)
    assert len(harness.cluster.workers) == 2
    assert len(harness.cluster.launch_requests) == 1


async def test_the_log_says_once_that_the_gcs_is_unreachable_and_once_that_it_is_back(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="shoal")
    await harness.iterate()
    harness.cluster.gcs_unreachable = True
    await harness.iterate(3)
    harness.cluster.gcs_unreachable = False
    await harness.iterate(3)
    messages = [r.message for r in caplog.records if r.name == "shoal.controller.observer"]
    assert messages == ["GCS unreachable: Ray on the head does not answer", "GCS reachable again"]


async def test_a_drain_that_did_not_reach_ray_is_retried(harness: Harness) -> None:
    harness.cluster.set_pending_tasks(1)
    await harness.iterate()
    harness.cluster.set_pending_tasks(0)
    (worker,) = harness.cluster.workers
    harness.cluster.set_idle(worker, 1000)
    harness.cluster.drains_fail = True
    await harness.iterate(2, seconds=400)
    assert harness.state.nodes[worker].phase is Phase.READY
    assert set(harness.reasons("retry")) == {"could not drain it: Ray on the head does not answer"}
    harness.cluster.drains_fail = False
    await harness.iterate(3, seconds=400)
    assert harness.cluster.workers == []


@pytest.mark.parametrize("reached_ray", [True, False])
async def test_killed_during_a_drain_it_continues_from_what_ray_reports(
    harness: Harness, reached_ray: bool
) -> None:
    harness.cluster.set_pending_tasks(1)
    await harness.iterate()
    harness.cluster.set_pending_tasks(0)
    (worker,) = harness.cluster.workers
    harness.cluster.set_idle(worker, 1000)
    draining, killed, drain = threading.Event(), threading.Event(), harness.cluster.drain_idle

    def interrupted(ray_id: str, why: str) -> tuple[bool, str]:
        answer = drain(ray_id, why) if reached_ray else (False, "")
        draining.set()
        killed.wait(10)
        return answer

    harness.cluster.drain_idle = interrupted  # type: ignore[method-assign]
    harness.cluster.time += 400
    await harness.controller.run_once()
    assert await asyncio.to_thread(draining.wait, 10)
    await harness.controller.close()
    killed.set()
    harness.cluster.drain_idle = drain  # type: ignore[method-assign]
    if not reached_ray:
        harness.cluster.busy = {worker}
    harness.restart()
    assert harness.state.nodes[worker].phase is Phase.DRAINING
    await harness.iterate(3, seconds=10)
    if reached_ray:
        assert harness.cluster.workers == []
        return
    assert harness.state.nodes[worker].phase is Phase.READY
    assert harness.state.nodes[worker].ended == ""
    harness.cluster.busy = set()
    await harness.iterate(4, seconds=400)
    assert harness.cluster.workers == [], "and is drained again when it is idle"


async def test_the_heads_ray_is_restarted_when_it_died(harness: Harness) -> None:
    harness.cluster.set_pending_tasks(1)
    await harness.iterate()
    harness.cluster.head_ray_dead = True
    harness.cluster.ray.clear()
    await harness.iterate(8, seconds=2)
    assert set(harness.cluster.ray) == set(harness.cluster.instances)
    assert len(harness.cluster.launch_requests) == 1
    assert harness.reasons("restart") == ["the head's Ray has died; restarting Ray on all nodes"]


async def test_the_heads_ray_is_restarted_when_only_its_raylet_died(harness: Harness) -> None:
    await harness.iterate()
    del harness.cluster.ray["head"]
    await harness.iterate(8, seconds=2)
    assert "head" in harness.cluster.ray
    assert len(harness.reasons("restart")) == 1


def head_phase(harness: Harness) -> Phase:
    return harness.state.nodes["head"].phase


async def test_the_head_is_not_ready_before_its_restart_has_ended(harness: Harness) -> None:
    """`shoal up` waits for it: stopping the controller earlier would cut `ray start` short."""
    await harness.iterate()
    gate = harness.cluster.restart_gate = asyncio.Event()
    harness.cluster.head_ray_dead = True
    harness.cluster.ray.clear()
    for _ in range(8):
        harness.cluster.time += 2
        await harness.controller.run_once()
    assert "head" in harness.cluster.ray, "its GCS answers already"
    assert head_phase(harness) is Phase.BOOTING
    gate.set()
    await harness.iterate(2)
    assert head_phase(harness) is Phase.READY


async def test_a_head_that_could_not_be_restarted_has_failed_until_the_next_try(
    harness: Harness,
) -> None:
    await harness.iterate()
    harness.cluster.restart_error = SetupError("no space left on device")
    harness.cluster.head_ray_dead = True
    harness.cluster.ray.clear()
    await harness.iterate(4, seconds=2)
    assert head_phase(harness) is Phase.FAILED
    assert "no space left on device" in harness.state.nodes["head"].detail
    harness.cluster.restart_error = None
    await harness.iterate(8, seconds=4)
    assert head_phase(harness) is Phase.READY


async def test_setups_that_fail_because_of_the_head_do_not_count_against_their_type(
    harness: Harness,
) -> None:
    for count in range(1, MAX_SETUP_FAILURES + 1):
        harness.cluster.setup_gate, harness.cluster.setup_failures = asyncio.Event(), 1
        harness.cluster.set_pending_tasks(count)
        await harness.iterate()
        harness.cluster.head_ray_dead = True
        harness.cluster.setup_gate.set()
        await harness.iterate(8, seconds=2)
        assert len(harness.reasons("failed")) == count
    assert harness.state.failures == ()
    assert len(harness.cluster.workers) == MAX_SETUP_FAILURES


async def test_the_heads_ray_is_restarted_again_when_it_dies_while_nodes_rejoin(
    harness: Harness,
) -> None:
    harness.cluster.set_pending_tasks(1)
    await harness.iterate()
    harness.cluster.setup_gate = asyncio.Event()
    for deaths in (1, 2):
        harness.cluster.head_ray_dead = True
        await harness.iterate(8, seconds=2)
        assert not harness.cluster.head_ray_dead
        assert len(harness.reasons("restart")) == deaths
    harness.cluster.setup_gate.set()
    await harness.iterate(2)
    assert set(harness.cluster.ray) == set(harness.cluster.instances)


async def test_a_pending_node_that_is_no_longer_needed_is_cancelled(
    harness: Harness,
) -> None:
    harness.cluster.setup_gate = asyncio.Event()
    harness.cluster.set_pending_tasks(1)
    await harness.iterate()
    harness.cluster.set_pending_tasks(0)
    await harness.iterate(8, seconds=60)
    assert harness.cluster.workers == []
    assert harness.reasons("cancel")
