"""Reads the records of one cluster's instances, also of those that a listing does not show yet, and
waits for their addresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal.core.concurrency import run_all
from shoal.core.polling import PollUntilDeadline
from shoal.providers.gcp import labels
from shoal.providers.gcp.gcp_client import GcpClient
from shoal.providers.gcp.instances import Record, is_spot, list_cluster, state_of, zone_of
from shoal.providers.gcp.launch_config import LaunchLocations
from shoal.providers.model import State
from shoal.providers.vm import tags
from shoal.providers.vm.waiters import Observed, poll_intervals

_ADDRESS_SECONDS = 120.0
_NOT_FOUND = ("notFound",)
# Of the values that Ray's own launcher uses.
_FINAL_STATUSES = ("up-to-date", "update-failed")


class InstanceReader:
    """`_zones` are the zones of the instances that were seen, by name."""

    def __init__(self, gcp: GcpClient, cluster: str, locations: LaunchLocations) -> None:
        self._gcp = gcp
        self._cluster = cluster
        self._locations = locations
        self._zones: dict[str, str] = {}

    def remember(self, records: Sequence[Record]) -> None:
        """Remember where instances are."""
        self._zones.update({str(r["name"]): zone_of(r) for r in records})

    async def get(self, zone: str, name: str) -> Record:
        """Google's record of an instance; empty if it is deleted."""
        return await self._gcp.compute(
            "GET", f"zones/{zone}/instances/{name}", ignore_codes=_NOT_FOUND
        )

    async def read_unlisted(self, missing: Sequence[str]) -> list[Record]:
        """The records of instances that a listing does not show, as far as they exist."""
        if not missing:
            return []
        all_zones = await self._locations.zones()

        async def read(name: str) -> Record:
            for zone in [self._zones[name]] if name in self._zones else all_zones:
                if record := await self.get(zone, name):
                    return record
            return {}

        return [record for record in await run_all(map(read, missing)) if record]

    async def observe(self, ids: Sequence[str]) -> list[Observed]:
        """The states of instances that are expected to boot: one that is stopped will not."""
        records = await list_cluster(self._gcp, self._cluster)
        by_name = {str(record["name"]): record for record in records}
        unlisted = await self.read_unlisted([id for id in ids if id not in by_name])
        by_name.update({str(record["name"]): record for record in unlisted})
        return [_observed(id, by_name.get(id)) for id in ids]

    async def with_addresses(self, created: Sequence[Record]) -> list[Record]:
        """The records of new instances, once Google has assigned their addresses."""
        records = {str(record["name"]): record for record in created}
        async for _ in PollUntilDeadline(self._gcp.clock, _ADDRESS_SECONDS, poll_intervals()):
            pending = [r for r in records.values() if state_of(r) is State.PENDING]
            if not pending:
                break
            fresh = await run_all(self.get(zone_of(r), r["name"]) for r in pending)
            records.update({str(record["name"]): record for record in fresh if record})
        return list(records.values())

    async def label_statuses(self, statuses: Mapping[str, str]) -> None:
        """Label instances with how their bootstrap ended. Each label is an operation, so what lasts
        a moment is not labelled."""
        known = {
            id: status
            for id, status in statuses.items()
            if id in self._zones and status in _FINAL_STATUSES
        }
        await run_all(
            labels.set_label(
                self._gcp, f"zones/{self._zones[id]}/instances/{id}", tags.RAY_NODE_STATUS, status
            )
            for id, status in known.items()
        )


def _observed(id: str, record: Record | None) -> Observed:
    if record is None:
        return Observed(id, State.TERMINATED, "Google does not list it any more")
    state = state_of(record)
    if state in (State.STOPPING, State.STOPPED):
        what = "Google preempted it" if is_spot(record) else "it was stopped"
        return Observed(id, State.TERMINATING, what)
    return Observed(id, state)
