"""Google's records of instances: how they are listed, and converted to Shoal's `Instance`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from shoal.core.node_phase import Role
from shoal.providers.gcp import launch_request, names
from shoal.providers.gcp.gcp_client import GcpClient
from shoal.providers.model import Instance, State
from shoal.providers.vm import tags

Record = dict[str, Any]

# Google calls an instance that is off TERMINATED; one that is deleted has no record.
_STATES = {
    "PROVISIONING": State.PENDING,
    "STAGING": State.PENDING,
    "RUNNING": State.RUNNING,
    "REPAIRING": State.RUNNING,
    "PENDING_STOP": State.STOPPING,
    "STOPPING": State.STOPPING,
    "SUSPENDING": State.STOPPING,
    "SUSPENDED": State.STOPPED,
    "TERMINATED": State.STOPPED,
    "DEPROVISIONING": State.TERMINATING,
}


async def list_records(gcp: GcpClient, filter: str) -> list[Record]:
    """The records of the instances in all zones that pass a filter."""
    found: list[Record] = []
    async for page in gcp.pages("aggregated/instances", {"filter": filter}):
        for scope in (page.get("items") or {}).values():
            found += scope.get("instances") or ()
    return found


async def list_cluster(gcp: GcpClient, cluster: str | None) -> list[Record]:
    """The records of a cluster's instances, or of every cluster's. The label of a cluster is
    sometimes a digest, so the name itself is compared as well."""
    records = await list_records(gcp, names.cluster_filter(cluster))
    return [r for r in records if cluster in (None, tags_of(r).get(tags.CLUSTER))]


def zone_of(record: Mapping[str, Any]) -> str:
    return str(record["zone"]).rpartition("/")[2]


def path_of(record: Mapping[str, Any]) -> str:
    """The path of an instance below its project."""
    return f"zones/{zone_of(record)}/instances/{record['name']}"


def state_of(record: Mapping[str, Any]) -> State:
    """A status that is not known yet is never one of an instance that is gone."""
    return _STATES.get(str(record.get("status")), State.UNREACHABLE)


def is_spot(record: Mapping[str, Any]) -> bool:
    return launch_request.market(record) == "spot"


def tags_of(record: Mapping[str, Any]) -> dict[str, str]:
    """The tags of an instance, with the names that labels cannot hold."""
    values = names.metadata_values((record.get("metadata") or {}).get("items"))
    real: dict[str, str] = {}
    with contextlib.suppress(ValueError, AttributeError):
        stored = json.loads(values.get(names.METADATA_TAGS, "{}"))
        real = {str(key): str(value) for key, value in stored.items()}
    return names.read_tags(record.get("labels") or {}, real)


def read_instance(record: Mapping[str, Any], user: str) -> Instance:
    """One instance of a listing."""
    labels = tags_of(record)
    role: Role = "head" if labels.get(tags.RAY_NODE_KIND) == "head" else "worker"
    interface = (record.get("networkInterfaces") or [{}])[0]
    access = (interface.get("accessConfigs") or [{}])[0]
    return Instance(
        id=str(record["name"]),
        cluster=labels.get(tags.CLUSTER, ""),
        name="head" if role == "head" else f"worker-{_short(str(record['name']))}",
        node_type=labels.get(tags.RAY_USER_NODE_TYPE, ""),
        role=role,
        state=state_of(record),
        address=str(interface.get("networkIP") or ""),
        created_at=python_time(record["creationTimestamp"]),
        public_address=str(access.get("natIP") or ""),
        user=user,
        market=launch_request.market(record),
        zone=zone_of(record),
        instance_type=launch_request.machine_type(record),
        launch_hash=labels.get(tags.RAY_LAUNCH_CONFIG, ""),
        tags=labels,
    )


def _short(name: str) -> str:
    """The end of an instance's name, which tells the workers of a cluster apart."""
    launch, _, index = name.rpartition("-")
    return f"{launch[-4:]}-{index}"


def python_time(stamp: str) -> float:
    """A time of Google's in epoch seconds. Python 3.10 does not know the suffix Z."""
    return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()
