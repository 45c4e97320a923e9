"""EC2's records of instances, read as ours. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.core.node_phase import Role
from shoal.providers.aws import tags
from shoal.providers.model import Instance, State

# What AWS says of a machine, among its tags; it lets nobody else have tags that begin so.
TYPE, ZONE, MARKET = "aws:type", "aws:zone", "aws:market"

_STATES = {
    "pending": State.PENDING,
    "running": State.RUNNING,
    "stopping": State.STOPPING,
    "stopped": State.STOPPED,
    "shutting-down": State.TERMINATING,
    "terminated": State.TERMINATED,
}


def state_of(record: Mapping[str, Any]) -> State:
    return _STATES[record["State"]["Name"]]


def read_instance(record: Mapping[str, Any], user: str) -> Instance:
    """One instance of a `DescribeInstances` or `RunInstances` answer."""
    labels = tags.as_dict(record.get("Tags"))
    role: Role = "head" if labels.get(tags.RAY_KIND) == "head" else "worker"
    return Instance(
        id=record["InstanceId"],
        cluster=labels.get(tags.CLUSTER, ""),
        # One launch gives all of its machines the same tags, so the id must tell them apart.
        name="head" if role == "head" else f"worker-{record['InstanceId'][-6:]}",
        node_type=labels.get(tags.RAY_NODE_TYPE, ""),
        role=role,
        state=state_of(record),
        address=record.get("PrivateIpAddress") or "",
        created_at=record["LaunchTime"].timestamp(),
        public_address=record.get("PublicIpAddress") or "",
        user=user,
        market=record.get("InstanceLifecycle") or "on-demand",
        zone=record["Placement"]["AvailabilityZone"],
        machine=record["InstanceType"],
        made_from=labels.get(tags.RAY_LAUNCH, ""),
        tags={**labels, **_facts(record)},
    )


def _facts(record: Mapping[str, Any]) -> dict[str, str]:
    """What else a person wants to know of a machine, beside its tags proper."""
    return {
        TYPE: record["InstanceType"],
        ZONE: record["Placement"]["AvailabilityZone"],
        MARKET: record.get("InstanceLifecycle") or "on-demand",
    }
