"""The usage ledger: an append-only file with one record per period in which an instance ran.

The last line of a record wins. The head keeps a ledger while it lives, and each machine that runs
`shoal` keeps another one; `merge_records` combines them. A ledger must never stop its caller:
read and write errors are logged and suppressed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Container, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

from shoal.core.logs import suppress_and_log
from shoal.core.node_phase import Phase

_log = logging.getLogger(__name__)

# The provider's start time and the one recorded by the caller may differ by this much. An instance
# that was stopped and started again was off for longer.
_SAME_START_TOLERANCE_S = 90.0
_OFF_PHASES = (Phase.GONE, Phase.STOPPED)


@dataclass(frozen=True)
class UsageRecord:
    """One period in which an instance ran. `last_seen_at` is when it was last known to run, and
    `ended_at` is None until its end was observed. `price_per_hour` is the price at its start; None
    if it is free or unknown. `extras_per_hour` is what its volumes and its address cost."""

    id: str
    node_type: str
    market: str
    zone: str
    price_per_hour: float | None
    started_at: float
    last_seen_at: float
    ended_at: float | None = None
    extras_per_hour: float = 0.0

    def end(self, now: float, running_ids: Container[str]) -> float:
        """The time up to which the instance is billed: its end, or now if it still runs. If its
        end was not observed, the time at which it was last seen."""
        if self.ended_at is not None:
            return self.ended_at
        return now if self.id in running_ids else self.last_seen_at


class BilledResource(Protocol):
    """What a usage record says of an instance or a node."""

    @property
    def id(self) -> str: ...
    @property
    def node_type(self) -> str: ...
    @property
    def market(self) -> str: ...
    @property
    def zone(self) -> str: ...
    @property
    def price_per_hour(self) -> float | None: ...
    @property
    def extras_per_hour(self) -> float: ...


class BilledNode(BilledResource, Protocol):
    """A node: `created` is when its instance was launched, `since` when the node entered its
    phase."""

    @property
    def phase(self) -> Phase: ...
    @property
    def created(self) -> float: ...
    @property
    def since(self) -> float: ...


class UsageLedger:
    """A file of usage records. `_open` holds the records without an end, by instance id; it is
    read from the file on first use."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open: dict[str, UsageRecord] | None = None

    def read(self) -> list[UsageRecord]:
        """All records; none if the file cannot be read."""
        try:
            return parse_records(self._path.read_text(encoding="utf-8", errors="replace"))
        except OSError as error:
            _log.debug("could not read the usage ledger %s: %s", self._path, error)
            return []

    def append(self, records: Iterable[UsageRecord]) -> None:
        lines = "".join(json.dumps(asdict(record)) + "\n" for record in records)
        with suppress_and_log(_log, f"append to the usage ledger {self._path}", OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(lines)

    def record_nodes(self, nodes: Iterable[BilledNode]) -> None:
        """Append a record for each node whose instance started or ended since the last call."""
        if self._open is None:
            self._open = {r.id: r for r in self.read() if r.ended_at is None}
        changed = []
        for node in nodes:
            record = self._open.get(node.id)
            if node.phase in _OFF_PHASES:
                if record is not None:
                    changed.append(replace(record, last_seen_at=node.since, ended_at=node.since))
                    del self._open[node.id]
            elif record is None:
                self._open[node.id] = usage_since(node, node.created, node.since)
                changed.append(self._open[node.id])
        if changed:
            self.append(changed)


def usage_since(resource: BilledResource, started_at: float, last_seen_at: float) -> UsageRecord:
    """The record of an instance that runs."""
    return UsageRecord(
        id=resource.id,
        node_type=resource.node_type,
        market=resource.market,
        zone=resource.zone,
        price_per_hour=resource.price_per_hour,
        started_at=started_at,
        last_seen_at=last_seen_at,
        extras_per_hour=resource.extras_per_hour,
    )


def parse_records(text: str) -> list[UsageRecord]:
    """The records in a ledger's text. Lines that are not records are skipped."""
    records: dict[tuple[str, float], UsageRecord] = {}
    for line in text.splitlines():
        with suppress_and_log(_log, "parse a line of a usage ledger", ValueError, TypeError):
            record = UsageRecord(**json.loads(line))
            records[record.id, record.started_at] = record
    return list(records.values())


def merge_records(records: Iterable[UsageRecord]) -> list[UsageRecord]:
    """Combine records from several ledgers into one per period in which an instance ran."""
    by_id: dict[str, list[UsageRecord]] = {}
    for record in sorted(records, key=lambda r: r.started_at):
        periods = by_id.setdefault(record.id, [])
        if periods and record.started_at - periods[-1].started_at <= _SAME_START_TOLERANCE_S:
            periods[-1] = _combine(periods[-1], record)
        else:
            periods.append(record)
    return [record for periods in by_id.values() for record in _close_earlier(periods)]


def _combine(first: UsageRecord, second: UsageRecord) -> UsageRecord:
    ends = [r.ended_at for r in (first, second) if r.ended_at is not None]
    price = first.price_per_hour if first.price_per_hour is not None else second.price_per_hour
    last_seen_at = max(first.last_seen_at, second.last_seen_at)
    # The earliest observed end is the true one: later ones were recorded with a delay.
    ended_at = min(ends, default=None)
    return replace(
        first,
        price_per_hour=price,
        extras_per_hour=max(first.extras_per_hour, second.extras_per_hour),
        last_seen_at=last_seen_at,
        ended_at=ended_at,
    )


def _close_earlier(periods: Sequence[UsageRecord]) -> list[UsageRecord]:
    """End every period but the last: an instance that started again was off in between, even if
    its end was not observed."""
    closed = [
        r if r.ended_at is not None else replace(r, ended_at=r.last_seen_at) for r in periods[:-1]
    ]
    return [*closed, periods[-1]]


@dataclass(frozen=True)
class CostRow:
    """What the instances of one node type and market have cost. `cost` is None if they are free
    or no price is known; `complete` is false if the end of one was not observed."""

    node_type: str
    market: str
    instances: int
    hours: float
    cost: float | None
    complete: bool


def summarize(
    records: Sequence[UsageRecord], now: float, running_ids: Container[str]
) -> list[CostRow]:
    """The cost so far by node type and market. `running_ids` are the instances that run now."""
    groups: dict[tuple[str, str], list[UsageRecord]] = {}
    for record in records:
        groups.setdefault((record.node_type, record.market), []).append(record)
    return [_cost_row(key, group, now, running_ids) for key, group in sorted(groups.items())]


def _cost_row(
    key: tuple[str, str], records: Sequence[UsageRecord], now: float, running_ids: Container[str]
) -> CostRow:
    node_type, market = key
    hours = [max(0.0, r.end(now, running_ids) - r.started_at) / 3600 for r in records]
    costs = [
        length * (r.price_per_hour + r.extras_per_hour)
        for length, r in zip(hours, records, strict=True)
        if r.price_per_hour is not None
    ]
    return CostRow(
        node_type=node_type,
        market=market,
        instances=len({r.id for r in records}),
        hours=sum(hours),
        cost=sum(costs) if costs else None,
        complete=all(r.ended_at is not None or r.id in running_ids for r in records),
    )
