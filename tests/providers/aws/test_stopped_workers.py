"""Machines that were switched off and are wanted again. All pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import pytest

from shoal.core.errors import TransientError
from shoal.providers.aws import stopped_workers, tags
from shoal.providers.aws.waiters import Waiter
from shoal.providers.model import LaunchRequest, State
from shoal.spec.hashes import launch_hash
from tests.providers.aws.manual_clock import StillClock
from tests.specs import cluster


def record(id: str, state: str, why: str = "") -> dict[str, Any]:
    """What EC2 says of a worker."""
    labels = tags.instance_tags("c", "worker", "worker", "t0", launch_hash(cluster(), "worker"))
    return {
        "InstanceId": id,
        "State": {"Name": state},
        "StateReason": {"Message": why},
        "InstanceType": "m5.large",
        "LaunchTime": datetime(2026, 1, 1, tzinfo=timezone.utc),
        "Placement": {"AvailabilityZone": "us-west-2a"},
        "Tags": tags.as_list(labels),
    }


@dataclass
class Listings:
    """What one listing after the other says; the last one again and again."""

    answers: list[list[dict[str, Any]]]
    clock: StillClock

    async def listed(self) -> Sequence[dict[str, Any]]:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    @property
    def vigil(self) -> Waiter:
        return Waiter(self.listed, self.clock)


def states(*names: str) -> Listings:
    """One machine that is listed in these states, in turn."""
    return Listings([[record("i-1", name, f"it is {name}")] for name in names], StillClock())


async def test_a_machine_is_waited_for_though_a_listing_lags() -> None:
    listings = states("stopped", "stopped", "pending", "running")
    assert await listings.vigil.run(["i-1"]) == {}
    assert len(listings.answers) == 1


@pytest.mark.parametrize("end", ["stopping", "stopped", "shutting-down", "terminated"])
async def test_a_machine_that_falls_back_while_it_starts_is_told_with_the_reason(end: str) -> None:
    found = await states("stopped", "pending", end).vigil.run(["i-1"])
    assert found == {"i-1": f"AWS says: it is {end}"}


async def test_a_machine_that_never_stirs_is_not_waited_for_as_long_as_one_that_boots() -> None:
    listings = states("stopped")
    began = listings.clock.monotonic()
    assert list(await listings.vigil.run(["i-1"])) == ["i-1"]
    assert listings.clock.monotonic() - began < 60


async def test_one_that_falls_back_does_not_hide_that_another_runs() -> None:
    listings = Listings(
        [
            [record("i-1", "pending"), record("i-2", "pending")],
            [record("i-1", "stopped", "KMS"), record("i-2", "pending")],
            [record("i-1", "stopped", "KMS"), record("i-2", "running")],
        ],
        StillClock(),
    )
    assert await listings.vigil.run(["i-1", "i-2"]) == {"i-1": "AWS says: KMS"}


async def test_what_never_ends_is_not_waited_for_for_ever() -> None:
    with pytest.raises(TransientError, match="did not end: i-1"):
        await states("shutting-down").vigil.reach(["i-1"], {State.TERMINATED}, "end")


def test_no_machine_is_taken_for_two_wishes_until_it_is_put_aside_again() -> None:
    spec, claims = cluster(), stopped_workers.Claims()
    listed = [record("i-1", "stopped")]  # as both saw it, before either was served

    def taken(token: str) -> list[str]:
        wish = LaunchRequest("worker", "worker", 1, token)
        found = stopped_workers.for_wish(spec, wish, claims.free_for(token, listed), ())
        claims.take(token, found)
        return [i.id for i in found]

    assert taken("one") == ["i-1"]
    assert taken("another") == []
    assert taken("one") == ["i-1"], "asking again is asking once"
    claims.release(
        stopped_workers.for_wish(spec, LaunchRequest("worker", "worker", 1, "x"), listed, ())
    )
    assert taken("another") == ["i-1"]
