"""Waiting for instances, and reuse of stopped workers. All pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import pytest

from shoal.core.errors import TransientError
from shoal.providers.aws import tags
from shoal.providers.aws.instances import read_instance, state_of, state_reason
from shoal.providers.model import LaunchRequest, State
from shoal.providers.vm import stopped_workers
from shoal.providers.vm.waiters import Observed, Waiter
from shoal.spec.hashes import launch_hash
from tests.providers.aws.manual_clock import ManualClock
from tests.specs import cluster


def record(id: str, state: str, reason: str = "") -> dict[str, Any]:
    """EC2's record of a worker."""
    labels = tags.instance_tags("c", "worker", "worker", "t0", launch_hash(cluster(), "worker"))
    return {
        "InstanceId": id,
        "State": {"Name": state},
        "StateReason": {"Message": reason},
        "InstanceType": "m5.large",
        "LaunchTime": datetime(2026, 1, 1, tzinfo=timezone.utc),
        "Placement": {"AvailabilityZone": "us-west-2a"},
        "Tags": tags.as_list(labels),
    }


@dataclass
class Listings:
    """Successive listings of instances; the last one repeats."""

    listings: list[list[dict[str, Any]]]
    clock: ManualClock

    async def describe(self, ids: Sequence[str]) -> Sequence[Observed]:
        records = self.listings.pop(0) if len(self.listings) > 1 else self.listings[0]
        return [Observed(r["InstanceId"], state_of(r), state_reason(r)) for r in records]

    @property
    def waiter(self) -> Waiter:
        return Waiter(self.describe, self.clock)


def states(*names: str) -> Listings:
    """One instance, listed in these states in turn."""
    return Listings([[record("i-1", name, f"it is {name}")] for name in names], ManualClock())


async def test_waiting_for_running_tolerates_a_lagging_listing() -> None:
    instances = states("stopped", "stopped", "pending", "running")
    assert await instances.waiter.until_running(["i-1"]) == {}
    assert len(instances.listings) == 1


@pytest.mark.parametrize("end", ["stopping", "stopped", "shutting-down", "terminated"])
async def test_an_instance_that_fails_to_start_is_reported_with_the_reason(end: str) -> None:
    failed = await states("stopped", "pending", end).waiter.until_running(["i-1"])
    assert failed == {"i-1": f"AWS says: it is {end}"}


async def test_an_instance_that_never_starts_is_given_up_before_the_boot_deadline() -> None:
    instances = states("stopped")
    started_at = instances.clock.monotonic()
    assert list(await instances.waiter.until_running(["i-1"])) == ["i-1"]
    assert instances.clock.monotonic() - started_at < 60


async def test_an_instance_that_fails_to_start_does_not_hide_one_that_runs() -> None:
    instances = Listings(
        [
            [record("i-1", "pending"), record("i-2", "pending")],
            [record("i-1", "stopped", "KMS"), record("i-2", "pending")],
            [record("i-1", "stopped", "KMS"), record("i-2", "running")],
        ],
        ManualClock(),
    )
    assert await instances.waiter.until_running(["i-1", "i-2"]) == {"i-1": "AWS says: KMS"}


async def test_waiting_for_termination_has_a_deadline() -> None:
    with pytest.raises(TransientError, match="did not terminate: i-1"):
        await states("shutting-down").waiter.until(["i-1"], {State.TERMINATED}, "terminate")


async def test_an_instance_that_ec2_forgets_is_terminated() -> None:
    instances = Listings([[record("i-1", "shutting-down")], []], ManualClock())
    started_at = instances.clock.monotonic()
    await instances.waiter.until(["i-1"], {State.TERMINATED}, "terminate")
    assert instances.clock.monotonic() - started_at < 5
    assert await Listings([[record("i-1", "pending")], []], ManualClock()).waiter.until_running(
        ["i-1"]
    ) == {"i-1": "the cloud does not list it any more"}


async def test_an_instance_that_ec2_does_not_list_yet_is_waited_for() -> None:
    instances = Listings([[], [], [record("i-1", "terminated")]], ManualClock())
    await instances.waiter.until(["i-1"], {State.TERMINATED}, "terminate")
    assert len(instances.listings) == 1


def test_a_stopped_worker_is_assigned_to_one_launch_until_it_is_released() -> None:
    spec, assignments = cluster(), stopped_workers.Assignments()
    instances = [read_instance(record("i-1", "stopped"), "")]  # as both launches see it

    def assign(token: str) -> list[str]:
        launch = LaunchRequest("worker", "worker", 1, token)
        available = assignments.available_to(token, instances)
        selected = stopped_workers.select_stopped(spec, launch, available, ())
        assignments.assign(token, selected)
        return [i.id for i in selected]

    assert assign("one") == ["i-1"]
    assert assign("another") == []
    assert assign("one") == ["i-1"], "the same token gets the same instances"
    launch = LaunchRequest("worker", "worker", 1, "x")
    assignments.release(stopped_workers.select_stopped(spec, launch, instances, ()))
    assert assign("another") == ["i-1"]
