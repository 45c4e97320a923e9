"""The usage ledgers of this machine."""

from __future__ import annotations

from pathlib import Path

from shoal.costs.ledger import UsageRecord
from shoal.costs.local_ledger import LocalLedger
from shoal.providers.model import Instance, State

HOUR = 3600.0


def instance(id: str, created_at: float | None = 0.0) -> Instance:
    return Instance(id, "c", id, "worker", "worker", State.RUNNING, "10.0.0.1", created_at)


def periods(ledger: LocalLedger) -> list[tuple[str, float, float | None]]:
    return [(r.id, r.started_at, r.ended_at) for r in ledger.records("c")]


def test_an_instance_is_billed_from_its_creation_until_it_ends(tmp_path: Path) -> None:
    ledger = LocalLedger(tmp_path)
    ledger.record_running("c", [instance("i-1"), instance("i-2")], now=60.0)
    ledger.record_ended("c", ["i-1", "i-unknown"], now=HOUR)
    assert periods(ledger) == [("i-1", 0.0, HOUR), ("i-2", 0.0, None)]
    assert ledger.clusters() == ["c"]


def test_a_host_without_creation_time_is_used_from_its_first_record(tmp_path: Path) -> None:
    ledger = LocalLedger(tmp_path)
    for now in (HOUR, 2 * HOUR):
        ledger.record_running("c", [instance("10.0.0.1", created_at=None)], now)
    assert periods(ledger) == [("10.0.0.1", HOUR, None)]


def test_records_of_the_heads_ledger_are_added_once(tmp_path: Path) -> None:
    ledger = LocalLedger(tmp_path)
    ledger.record_running("c", [instance("i-1")], now=60.0)
    head = [UsageRecord("i-9", "worker", "spot", "a", 0.1, 100.0, 200.0, 200.0)]
    for _ in range(2):
        ledger.add("c", head)
    assert periods(ledger) == [("i-1", 0.0, None), ("i-9", 100.0, 200.0)]
    assert len((tmp_path / "c.jsonl").read_text().splitlines()) == 2
