"""The disks that were created with a cluster's instances: those that are left without one, and what
disks of stopped instances still cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.core.concurrency import run_all
from shoal.providers.gcp import names
from shoal.providers.gcp.gcp_client import GcpClient

# Label of a disk that outlives its instance because the file says so.
RETAINED = "shoal-retained"


async def list_disks(gcp: GcpClient, cluster: str | None) -> list[dict[str, Any]]:
    """The disks of a cluster, or of every cluster, in all zones."""
    found: list[dict[str, Any]] = []
    async for page in gcp.pages("aggregated/disks", {"filter": names.cluster_filter(cluster)}):
        for scope in (page.get("items") or {}).values():
            found += scope.get("disks") or ()
    return found


def is_leftover(disk: Mapping[str, Any]) -> bool:
    """Whether nothing uses a disk, and the file does not retain it."""
    return not disk.get("users") and RETAINED not in (disk.get("labels") or {})


def path_of(disk: Mapping[str, Any]) -> str:
    """The path of a disk below its project."""
    return f"zones/{str(disk['zone']).rpartition('/')[2]}/disks/{disk['name']}"


async def delete_leftover(gcp: GcpClient, cluster: str) -> list[str]:
    """Delete the disks that a cluster left behind; returns descriptions of them."""
    leftover = [disk for disk in await list_disks(gcp, cluster) if is_leftover(disk)]
    await run_all(
        gcp.perform("DELETE", path_of(disk), ignore_codes=("notFound",)) for disk in leftover
    )
    return [f"disk {disk['name']}" for disk in leftover]


def costs_while_stopped(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Descriptions of the disks of stopped instances, which still cost."""
    return [
        f"disk {str(disk.get('source') or disk.get('deviceName') or '').rpartition('/')[2]}"
        + (f" with {disk['diskSizeGb']} GB" if disk.get("diskSizeGb") else "")
        for record in records
        for disk in record.get("disks") or ()
        if disk.get("type") != "SCRATCH"
    ]
