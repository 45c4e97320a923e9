"""EC2's records of instances, converted to Shoal's `Instance`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.core.node_phase import Role
from shoal.providers.aws import tags
from shoal.providers.model import Instance, State

# Facts about an instance, shown among its tags; AWS reserves tag keys with this prefix.
TYPE, ZONE, MARKET = "aws:type", "aws:zone", "aws:market"

TERMINAL_STATES = (State.TERMINATING, State.TERMINATED)

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


def state_reason(record: Mapping[str, Any]) -> str:
    """Why an instance is in its state, as EC2 explains it."""
    message = (record.get("StateReason") or {}).get("Message")
    return f"AWS says: {message}" if message else "AWS gives no reason"


def read_instance(record: Mapping[str, Any], user: str) -> Instance:
    """One instance of a `DescribeInstances` or `RunInstances` response."""
    labels = tags.as_dict(record.get("Tags"))
    role: Role = "head" if labels.get(tags.RAY_NODE_KIND) == "head" else "worker"
    return Instance(
        id=record["InstanceId"],
        cluster=labels.get(tags.CLUSTER, ""),
        # All instances of one launch carry the same tags, so only the id tells them apart.
        name="head" if role == "head" else f"worker-{record['InstanceId'][-6:]}",
        node_type=labels.get(tags.RAY_USER_NODE_TYPE, ""),
        role=role,
        state=state_of(record),
        address=record.get("PrivateIpAddress") or "",
        created_at=record["LaunchTime"].timestamp(),
        public_address=record.get("PublicIpAddress") or "",
        user=user,
        market=record.get("InstanceLifecycle") or "on-demand",
        zone=record["Placement"]["AvailabilityZone"],
        instance_type=record["InstanceType"],
        launch_hash=labels.get(tags.RAY_LAUNCH_CONFIG, ""),
        tags={**labels, **_facts(record)},
    )


def _facts(record: Mapping[str, Any]) -> dict[str, str]:
    return {
        TYPE: record["InstanceType"],
        ZONE: record["Placement"]["AvailabilityZone"],
        MARKET: record.get("InstanceLifecycle") or "on-demand",
    }
