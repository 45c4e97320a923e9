"""The usage ledgers on this machine, one file per cluster. They outlive their clusters."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from shoal.costs.ledger import (
    BilledResource,
    UsageLedger,
    UsageRecord,
    merge_records,
    usage_since,
)

_log = logging.getLogger(__name__)


class BilledInstance(BilledResource, Protocol):
    """An instance. `created_at` is None for a host that its provider did not launch."""

    @property
    def created_at(self) -> float | None: ...


class LocalLedger:
    """The usage of every cluster that was managed from this machine."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def clusters(self) -> list[str]:
        """The clusters with usage records, including clusters that no longer exist."""
        return sorted(path.stem for path in self._directory.glob("*.jsonl"))

    def records(self, cluster: str) -> list[UsageRecord]:
        """One record per period in which an instance of the cluster ran."""
        return merge_records(self._ledger(cluster).read())

    def record_running(self, cluster: str, instances: Iterable[BilledInstance], now: float) -> None:
        """Record that these instances run now."""
        # For a host without a creation time, its use by the cluster starts with its first record.
        started = {r.id: r.started_at for r in self.records(cluster) if r.ended_at is None}
        self._ledger(cluster).append(
            usage_since(i, started.get(i.id, now) if i.created_at is None else i.created_at, now)
            for i in instances
        )

    def record_ended(self, cluster: str, ids: Iterable[str], now: float) -> None:
        """Record that these instances were terminated or stopped."""
        ids = set(ids)
        ended = [r for r in self.records(cluster) if r.ended_at is None and r.id in ids]
        self._ledger(cluster).append(replace(r, last_seen_at=now, ended_at=now) for r in ended)

    def add(self, cluster: str, records: Iterable[UsageRecord]) -> None:
        """Merge records from another ledger of the cluster, such as the head's, into this one."""
        known = self.records(cluster)
        new = [r for r in merge_records([*known, *records]) if r not in known]
        if new:
            _log.info("adding %d usage records of cluster %s", len(new), cluster)
            self._ledger(cluster).append(new)

    def _ledger(self, cluster: str) -> UsageLedger:
        return UsageLedger(self._directory / f"{cluster}.jsonl")
