"""What machines have cost, from accounts that are never complete."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.controller.lifecycle import Node
from shoal.core.node_phase import Phase
from shoal.costs.ledger import Rental, Rentals, merged, parse, spent

HOUR = 3600.0


def rental(
    id: str = "i-1", began: float = 0.0, ended: float | None = None, *, seen: float | None = None,
    price: float | None = 0.10, kind: str = "worker", market: str = "on-demand",
) -> Rental:  # fmt: skip
    return Rental(id, kind, market, "a", price, began, seen or ended or began, ended)


def node(id: str, phase: Phase, since: float, created: float = 0.0) -> Node:
    return Node(id, id, "worker", "worker", phase, since, created, price_per_hour=0.10)


def test_machines_cost_by_the_hour_until_they_end_or_until_now() -> None:
    ended = rental(ended=2 * HOUR)
    runs = rental("i-2", began=HOUR)
    (row,) = spent([ended, runs], now=4 * HOUR, on={"i-2": None})
    assert (row.machines, row.hours, row.complete) == (2, 5.0, True)
    assert row.cost == pytest.approx(0.50)


def test_types_and_markets_are_told_apart() -> None:
    rows = spent([rental(), rental("i-2", kind="head"), rental("i-3", market="spot")], 0.0, {})
    assert [(row.node_type, row.market) for row in rows] == [
        ("head", "on-demand"),
        ("worker", "on-demand"),
        ("worker", "spot"),
    ]


def test_a_machine_whose_end_nobody_saw_counts_as_long_as_it_was_seen_and_that_is_said() -> None:
    (row,) = spent([rental(seen=HOUR)], now=9 * HOUR, on={})
    assert (row.hours, row.complete) == (1.0, False)


def test_a_machine_of_ones_own_has_hours_and_no_price() -> None:
    (row,) = spent([rental(price=None, ended=HOUR)], now=HOUR, on={})
    assert (row.hours, row.cost) == (1.0, None)


def test_two_accounts_of_one_machine_are_one_rental() -> None:
    """The provider's clock and that of who asked differ by seconds; who saw the end knows it."""
    theirs, ours = rental(began=3.0, ended=HOUR, price=None), rental(began=0.0, seen=60.0)
    (only,) = merged([theirs, ours])
    assert (only.began, only.ended, only.price_per_hour) == (0.0, HOUR, 0.10)


def test_a_machine_that_was_off_in_between_is_not_paid_for_then() -> None:
    first, second = rental(seen=HOUR), rental(began=10 * HOUR)
    found = merged([second, first])
    assert [(r.began, r.ended) for r in found] == [(0.0, HOUR), (10 * HOUR, None)]


def test_a_file_is_what_its_last_lines_say_and_survives_a_torn_one(tmp_path: Path) -> None:
    file = Rentals(tmp_path / "r.jsonl")
    file.write([rental(), rental("i-2")])
    file.write([rental(ended=HOUR)])
    with (tmp_path / "r.jsonl").open("a") as torn:
        torn.write('{"id": "i-3", "node_ty')
    assert {(r.id, r.ended) for r in file.read()} == {("i-1", HOUR), ("i-2", None)}
    assert parse("nonsense\n[]\n") == []


def test_of_a_node_only_its_coming_and_its_going_are_written(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    file = Rentals(path)
    for phase, at in ((Phase.BOOTING, 1.0), (Phase.READY, 2.0), (Phase.DRAINING, 3.0)):
        file.note([node("i-1", phase, at)])
    Rentals(path).note([node("i-1", Phase.GONE, HOUR)])  # by another controller
    assert len(path.read_text().splitlines()) == 2
    (only,) = file.read()
    assert (only.began, only.ended) == (0.0, HOUR)


def test_a_node_that_comes_back_is_another_rental(tmp_path: Path) -> None:
    file = Rentals(tmp_path / "r.jsonl")
    file.note([node("i-1", Phase.READY, 1.0), node("i-1", Phase.GONE, HOUR)])
    file.note([node("i-1", Phase.BOOTING, 5 * HOUR, created=5 * HOUR)])
    assert [r.began for r in merged(file.read())] == [0.0, 5 * HOUR]
