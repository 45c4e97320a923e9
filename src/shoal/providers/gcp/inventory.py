"""The inventory of a project: what Shoal's and Ray's clusters have in all of its regions, running
or left behind, and the deletion of orphans."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from shoal.core.clock import Clock
from shoal.core.concurrency import run_all
from shoal.core.errors import DeniedError, ShoalError
from shoal.core.events import Emit, Warned, ignore_events
from shoal.providers.baked_images import BakedImage
from shoal.providers.gcp import (
    cluster_resources,
    disks,
    firewall,
    machine_types,
    names,
    service_accounts,
)
from shoal.providers.gcp.gcp_client import GcpClient
from shoal.providers.gcp.instances import list_records, python_time, read_instance
from shoal.providers.model import Instance
from shoal.providers.vm import tags
from shoal.providers.vm.inventory import ClusterResources, NotOrphanedError, RetainedVolume
from shoal.providers.vm.waiters import TERMINAL_STATES

_log = logging.getLogger(__name__)

_NOT_FOUND = ("notFound",)
# Where resources are that no region has.
_GLOBAL = "global"


class GcpInventory:
    """The clusters of a project."""

    def __init__(self, project: str, clock: Clock, emit: Emit) -> None:
        self._gcp = GcpClient(project, clock)
        self._emit = emit

    async def list_clusters(self) -> list[ClusterResources]:
        return await self._list(self._emit)

    async def add_prices(self, clusters: Sequence[ClusterResources]) -> list[ClusterResources]:
        return list(clusters)  # they have the catalog's

    async def delete_orphan(self, orphan: ClusterResources) -> list[str]:
        key = (orphan.cluster, orphan.by_shoal)
        listed = await self._list(ignore_events)
        current = next((c for c in listed if (c.cluster, c.by_shoal) == key), None)
        try:
            if current is None:
                return []
            if not current.is_orphan(self._gcp.clock.now()):
                raise NotOrphanedError(
                    "it has a head again" if current.has_head else "it is just being created"
                )
            return await self._delete(current)
        except NotOrphanedError as error:
            where = f"{orphan.cluster} in {orphan.region}"
            self._emit(Warned(f"{where} is not deleted", error.what))
            return []

    async def delete_images(
        self, cluster: ClusterResources, images: Sequence[BakedImage]
    ) -> list[str]:
        return []

    async def _list(self, emit: Emit) -> list[ClusterResources]:
        records, volumes, rules, accounts = await run_all(
            [
                list_records(self._gcp, f"labels.{tags.RAY_CLUSTER_NAME}:*"),
                disks.list_disks(self._gcp, None),
                self._gcp.items("global/firewalls"),
                self._accounts(emit),
            ]
        )
        instances = [_priced(record) for record in records]
        found = _Clusters(self._gcp.project)
        for instance in instances:
            if instance.state not in TERMINAL_STATES:
                found.add_instance(instance)
        for rule in rules:
            if cluster := firewall.cluster_of(rule):
                found.add_other(cluster, f"firewall rule {rule['name']}", _created_at(rule))
        for account in accounts:
            found.add_other(account["cluster"], f"service account {account['email']}", 0.0)
        for disk in volumes:
            found.add_disk(disk)
        return sorted(found.clusters.values(), key=lambda entry: (entry.region, entry.cluster))

    async def _accounts(self, emit: Emit) -> list[dict[str, Any]]:
        """The service accounts that Shoal created. Many users may not list them."""
        try:
            accounts = await service_accounts.list_accounts(self._gcp)
        except ShoalError as error:
            if not isinstance(error, DeniedError):
                _log.info("could not list service accounts: %s", error.why)
            emit(Warned("could not list service accounts", error.why, error.fix))
            return []
        return [{"email": email, "cluster": cluster} for email, cluster in accounts.items()]

    async def _delete(self, orphan: ClusterResources) -> list[str]:
        await self._delete_instances(orphan.instances)
        deleted = [f"instance {i.id}" for i in orphan.instances]
        if not orphan.by_shoal:
            return deleted
        label = f"labels.{tags.CLUSTER} = {names.label_value(orphan.cluster)}"
        late = [read_instance(r, "") for r in await list_records(self._gcp, label)]
        if any(i.role == "head" for i in late):
            raise NotOrphanedError("it has a head again")
        await self._delete_instances(late)
        return [*deleted, *await cluster_resources.delete_resources(self._gcp, orphan.cluster)]

    async def _delete_instances(self, instances: Sequence[Instance]) -> None:
        await run_all(
            self._gcp.perform("DELETE", f"zones/{i.zone}/instances/{i.id}", ignore_codes=_NOT_FOUND)
            for i in instances
        )


class _Clusters:
    """The clusters that have been found, by name and whether Shoal made them."""

    def __init__(self, project: str) -> None:
        self._project = project
        self.clusters: dict[tuple[str, bool], ClusterResources] = {}

    def add_instance(self, instance: Instance) -> None:
        key = (instance.cluster, tags.CLUSTER in instance.tags)
        known = self._known(*key)
        self.clusters[key] = replace(
            known,
            region=f"{self._project} {instance.zone.rpartition('-')[0]}",
            instances=(*known.instances, instance),
            created_at=max(known.created_at, instance.created_at or 0.0),
        )

    def add_other(self, cluster: str, what: str, created_at: float) -> None:
        known = self._known(cluster, True)
        self.clusters[cluster, True] = replace(
            known,
            others=(*known.others, what),
            created_at=max(known.created_at, created_at),
        )

    def add_disk(self, disk: Mapping[str, Any]) -> None:
        """Add a disk that has no instance. Its label may be only a digest of the cluster's name."""
        label = str((disk.get("labels") or {}).get(tags.CLUSTER, ""))
        cluster = next((c for c, _ in self.clusters if names.label_value(c) == label), label)
        if disks.is_leftover(disk):
            self.add_other(cluster, f"disk {disk['name']}", _created_at(disk))
        elif not disk.get("users"):
            zone = str(disk["zone"]).rpartition("/")[2]
            delete = (
                f"gcloud compute disks delete {disk['name']} --zone {zone} "
                f"--project {self._project}"
            )
            known = self._known(cluster, True)
            entry = RetainedVolume(str(disk["name"]), int(disk.get("sizeGb") or 0), None, delete)
            self.clusters[cluster, True] = replace(known, retained=(*known.retained, entry))

    def _known(self, cluster: str, by_shoal: bool) -> ClusterResources:
        region = f"{self._project} {_GLOBAL}"
        nothing = ClusterResources(cluster, region, by_shoal, cloud="gcp")
        return self.clusters.get((cluster, by_shoal), nothing)


def _priced(record: Mapping[str, Any]) -> Instance:
    """An instance with its price, and the name of its cluster, also of one that Ray launched."""
    instance = read_instance(record, "")
    return replace(
        instance,
        cluster=instance.cluster or instance.tags.get(tags.RAY_CLUSTER_NAME, ""),
        price_per_hour=machine_types.price_per_hour(record, instance.zone.rpartition("-")[0]),
    )


def _created_at(record: Mapping[str, Any]) -> float:
    stamp = record.get("creationTimestamp")
    return python_time(str(stamp)) if stamp else 0.0
