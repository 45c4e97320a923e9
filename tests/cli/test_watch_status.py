"""`shoal status --watch`: nodes, demand, cost and decisions for people without a browser."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest

from shoal.cli.status import watch_lines
from shoal.core.errors import ShoalError, UnreachableError
from shoal.core.events import ignore_events
from shoal.costs.ledger import CostRow
from shoal.ops import watch_status
from shoal.ops.context import Context
from shoal.ops.cost import Cost
from shoal.ops.status import ClusterStatus
from shoal.ops.watch_status import WatchedStatus, watch
from tests import specs

STATUS = ClusterStatus("c", "aws", ())
ROWS = (CostRow("gpu", "spot", 2, 3.0, 6.5, True), CostRow("head", "", 1, 1.0, None, True))
COST = Cost("c", ROWS, 6.5, True, 0.0, 2.0)


def test_the_cost_is_shown_by_node_type_and_market() -> None:
    *_, last = watch_lines(WatchedStatus(STATUS, COST))
    assert last == "cost so far: $6.50 (gpu spot $6.50)"


def test_a_status_that_is_not_up_to_date_says_so_first() -> None:
    first, *_ = watch_lines(WatchedStatus(STATUS, problem="the head does not answer"))
    assert click.unstyle(first) == "not up to date: the head does not answer"


class Stopped(Exception):
    pass


class Clock:
    """Ends the watch after some updates."""

    def __init__(self, updates: int) -> None:
        self.left, self.seconds = updates, 0.0

    def now(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        self.left -= 1
        if not self.left:
            raise Stopped


async def shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, replies: list[Any]) -> list[Any]:
    """What a watch shows if the cluster answers like this, and what it was asked for the cost."""
    asked = iter(replies)
    costs: list[int] = []

    async def status(*_: object) -> ClusterStatus:
        reply = next(asked)
        if isinstance(reply, Exception):
            raise reply
        assert isinstance(reply, ClusterStatus)
        return reply

    async def cost(*_: object) -> Cost:
        costs.append(1)
        if len(costs) == 2:
            raise ShoalError("the ledger cannot be read")
        return COST

    monkeypatch.setattr(watch_status, "status", status)
    monkeypatch.setattr(watch_status, "cost", cost)
    ctx = Context(ignore_events, home=tmp_path, clock=Clock(len(replies)))
    updates: list[WatchedStatus] = []
    with pytest.raises(Stopped):
        await watch(ctx, specs.cluster(), updates.append, every=15.0)
    return [updates, len(costs)]


async def test_a_lost_connection_keeps_the_last_status_and_recovers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lost = UnreachableError("the head does not answer")
    later = replace(STATUS, address="10.0.0.1")
    (updates, costs) = await shown(monkeypatch, tmp_path, [STATUS, lost, later])
    assert [u.problem for u in updates] == ["", "the head does not answer", ""]
    assert updates[1].status == STATUS and updates[2].status == later
    assert costs == 2, "the cost is read every 30 s only"
    assert updates[2].cost == COST, "a cost that cannot be read stays as it was"


async def test_a_cluster_that_does_not_answer_at_first_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def status(*_: object) -> ClusterStatus:
        raise UnreachableError("the head does not answer")

    monkeypatch.setattr(watch_status, "status", status)
    ctx = Context(ignore_events, home=tmp_path)
    with pytest.raises(UnreachableError):
        await watch(ctx, specs.cluster(), lambda _: None, every=1.0)
