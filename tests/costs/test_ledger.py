"""Usage records, and costs from ledgers that may be incomplete."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.controller.lifecycle import Node
from shoal.core.node_phase import Phase
from shoal.costs.ledger import UsageLedger, UsageRecord, merge_records, parse_records, summarize

HOUR = 3600.0


def record(
    id: str = "i-1", started_at: float = 0.0, ended_at: float | None = None, *,
    last_seen_at: float | None = None, price: float | None = 0.10, node_type: str = "worker",
    market: str = "on-demand",
) -> UsageRecord:  # fmt: skip
    last_seen_at = last_seen_at or ended_at or started_at
    return UsageRecord(id, node_type, market, "a", price, started_at, last_seen_at, ended_at)


def node(id: str, phase: Phase, since: float, created: float = 0.0) -> Node:
    return Node(id, id, "worker", "worker", phase, since, created, price_per_hour=0.10)


def test_an_instance_costs_its_hourly_price_until_it_ends_or_until_now() -> None:
    ended = record(ended_at=2 * HOUR)
    running = record("i-2", started_at=HOUR)
    (row,) = summarize([ended, running], now=4 * HOUR, running_ids={"i-2"})
    assert (row.instances, row.hours, row.complete) == (2, 5.0, True)
    assert row.cost == pytest.approx(0.50)


def test_each_node_type_and_market_has_a_row() -> None:
    records = [record(), record("i-2", node_type="head"), record("i-3", market="spot")]
    rows = summarize(records, now=0.0, running_ids=set())
    assert [(row.node_type, row.market) for row in rows] == [
        ("head", "on-demand"),
        ("worker", "on-demand"),
        ("worker", "spot"),
    ]


def test_an_unobserved_end_counts_as_last_seen_and_makes_the_row_incomplete() -> None:
    (row,) = summarize([record(last_seen_at=HOUR)], now=9 * HOUR, running_ids=set())
    assert (row.hours, row.complete) == (1.0, False)


def test_a_local_host_has_hours_and_no_cost() -> None:
    (row,) = summarize([record(price=None, ended_at=HOUR)], now=HOUR, running_ids=set())
    assert (row.hours, row.cost) == (1.0, None)


def test_records_of_one_period_from_two_ledgers_are_merged() -> None:
    """The two clocks differ by seconds, and only one ledger has the end."""
    head = record(started_at=3.0, ended_at=HOUR, price=None)
    local = record(started_at=0.0, last_seen_at=60.0)
    (merged,) = merge_records([head, local])
    assert (merged.started_at, merged.ended_at, merged.price_per_hour) == (0.0, HOUR, 0.10)


def test_time_in_which_an_instance_was_stopped_is_not_billed() -> None:
    first, second = record(last_seen_at=HOUR), record(started_at=10 * HOUR)
    periods = merge_records([second, first])
    assert [(r.started_at, r.ended_at) for r in periods] == [(0.0, HOUR), (10 * HOUR, None)]


def test_the_last_line_of_a_record_wins_and_a_torn_line_is_skipped(tmp_path: Path) -> None:
    ledger = UsageLedger(tmp_path / "usage.jsonl")
    ledger.append([record(), record("i-2")])
    ledger.append([record(ended_at=HOUR)])
    with (tmp_path / "usage.jsonl").open("a") as file:
        file.write('{"id": "i-3", "node_ty')
    assert {(r.id, r.ended_at) for r in ledger.read()} == {("i-1", HOUR), ("i-2", None)}
    assert parse_records("nonsense\n[]\n") == []


def test_a_node_is_recorded_when_it_starts_and_when_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "usage.jsonl"
    ledger = UsageLedger(path)
    for phase, at in ((Phase.BOOTING, 1.0), (Phase.READY, 2.0), (Phase.DRAINING, 3.0)):
        ledger.record_nodes([node("i-1", phase, at)])
    UsageLedger(path).record_nodes([node("i-1", Phase.GONE, HOUR)])  # by another controller
    assert len(path.read_text().splitlines()) == 2
    (only,) = ledger.read()
    assert (only.started_at, only.ended_at) == (0.0, HOUR)


def test_a_node_that_starts_again_gets_another_record(tmp_path: Path) -> None:
    ledger = UsageLedger(tmp_path / "usage.jsonl")
    ledger.record_nodes([node("i-1", Phase.READY, 1.0), node("i-1", Phase.GONE, HOUR)])
    ledger.record_nodes([node("i-1", Phase.BOOTING, 5 * HOUR, created=5 * HOUR)])
    assert [r.started_at for r in merge_records(ledger.read())] == [0.0, 5 * HOUR]


def test_a_ledger_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ledger = UsageLedger(tmp_path / "file" / "usage.jsonl")
    ledger.append([record()])
    assert ledger.read() == []
