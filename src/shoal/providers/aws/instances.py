"""EC2's records of instances: how they are listed, and converted to Shoal's `Instance`."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from shoal.core.concurrency import run_all
from shoal.core.errors import DeniedError, ShoalError
from shoal.core.node_phase import Role
from shoal.providers.aws import tags
from shoal.providers.aws.aws_client import AwsClient
from shoal.providers.model import Instance, State
from shoal.providers.vm.waiters import Observed

# Facts about an instance, shown among its tags; AWS reserves tag keys with this prefix.
TYPE, ZONE, MARKET = "aws:type", "aws:zone", "aws:market"

_log = logging.getLogger(__name__)

# EC2 accepts at most this many ids in one call.
_MAX_IDS = 1000
_NOT_FOUND = "InvalidInstanceID.NotFound"
# EC2 rejects a call with more.
MAX_FILTER_VALUES = 200

# What EC2's reasons for the end of an instance mean, where they do not say it.
_KEY_DENIED = (
    "this usually means that the caller may not use the KMS key of an encrypted volume; have the "
    "policy of the key allow it to the account, or to the role of the head"
)
_EXPLANATIONS = {
    "Client.InternalError": _KEY_DENIED,
    "Client.InvalidKMSKey.InvalidState": "the KMS key of an encrypted volume is disabled or gone",
    "Client.VolumeLimitExceeded": "request a larger EBS quota, or use smaller volumes",
}

_STATES = {
    "pending": State.PENDING,
    "running": State.RUNNING,
    "stopping": State.STOPPING,
    "stopped": State.STOPPED,
    "shutting-down": State.TERMINATING,
    "terminated": State.TERMINATED,
}


async def list_records(
    aws: AwsClient, filters: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """EC2's records of the instances that pass these filters."""
    reservations = await aws.paginate("ec2", "describe_instances", "Reservations", Filters=filters)
    return [record for reservation in reservations for record in reservation["Instances"]]


async def describe_records(aws: AwsClient, ids: Sequence[str]) -> list[dict[str, Any]]:
    """EC2's records of these instances, as far as it has any. Unlike a listing by tag, this shows
    terminated instances until EC2 forgets them: it drops their tags first."""
    found = await run_all(
        list_records(aws, [{"Name": "instance-id", "Values": chunk}])
        for chunk in _chunks(sorted(set(ids)), MAX_FILTER_VALUES)
    )
    return [record for records in found for record in records]


async def observe(aws: AwsClient, ids: Sequence[str]) -> list[Observed]:
    """The states of these instances, as far as EC2 has records of them."""
    records = await describe_records(aws, ids)
    return [Observed(r["InstanceId"], state_of(r), state_reason(r)) for r in records]


def with_tags_of(earlier: Mapping[str, Any], record: dict[str, Any]) -> dict[str, Any]:
    """The record, with the tags of an earlier one if it has none: EC2 drops those of a terminated
    instance, and with them its role and node type."""
    return record if record.get("Tags") else {**record, "Tags": earlier.get("Tags", [])}


async def with_missing(
    aws: AwsClient, listed: list[dict[str, Any]], ids: Collection[str]
) -> list[dict[str, Any]]:
    """Records that were listed by tag, with those of these instances that are not among them: they
    are too new for the listing, or terminated, and have lost their tags."""
    missing = set(ids) - {record["InstanceId"] for record in listed}
    return [*listed, *await describe_records(aws, sorted(missing))]


def _chunks(ids: Sequence[str], size: int) -> list[list[str]]:
    return [list(ids[i : i + size]) for i in range(0, len(ids), size)]


async def change_state(
    aws: AwsClient, operation: str, ids: Sequence[str], retry_codes: Sequence[str] = ()
) -> None:
    """Start, stop or terminate these instances, in as many calls as EC2 needs."""
    for chunk in _chunks(ids, _MAX_IDS):
        await aws.call("ec2", operation, retry_codes=retry_codes, InstanceIds=chunk)


async def request_termination(aws: AwsClient, ids: Sequence[str]) -> None:
    """Have EC2 terminate these instances; those that it has forgotten are gone already."""
    try:
        # A listing may show an instance that has not propagated everywhere yet.
        await change_state(aws, "terminate_instances", ids, retry_codes=(_NOT_FOUND,))
    except ShoalError as error:
        if _NOT_FOUND not in error.why and not isinstance(error, DeniedError):
            raise
        # One unknown id fails the call for all; so does one that has lost its tags, by which the
        # caller has the permission.
        records = await describe_records(aws, ids)
        existing = [r["InstanceId"] for r in records if state_of(r) is not State.TERMINATED]
        _log.info("%s of %d instances to terminate exist", len(existing), len(ids))
        if isinstance(error, DeniedError) and len(existing) == len(set(ids)):
            raise
        await change_state(aws, "terminate_instances", existing)


async def tag_status(aws: AwsClient, statuses: Mapping[str, str]) -> None:
    """Set the tag by which Ray's tools know the status of each of these instances."""

    async def tag(status: str) -> None:
        ids = sorted(id for id, current in statuses.items() if current == status)
        labels = tags.as_list({tags.RAY_NODE_STATUS: status})
        for chunk in _chunks(ids, _MAX_IDS):
            await aws.call("ec2", "create_tags", Resources=chunk, Tags=labels)

    await run_all(tag(status) for status in sorted(set(statuses.values())))


def state_of(record: Mapping[str, Any]) -> State:
    return _STATES[record["State"]["Name"]]


def state_reason(record: Mapping[str, Any]) -> str:
    """Why an instance is in its state, as EC2 explains it."""
    reason = record.get("StateReason") or {}
    code, message = str(reason.get("Code", "")), reason.get("Message")
    if code in _EXPLANATIONS:
        return f"AWS says: {message}: {_EXPLANATIONS[code]}"
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
        market=_market(record),
        zone=record["Placement"]["AvailabilityZone"],
        instance_type=record["InstanceType"],
        launch_hash=labels.get(tags.RAY_LAUNCH_CONFIG, ""),
        tags={**labels, **_facts(record)},
    )


def _market(record: Mapping[str, Any]) -> str:
    """Spot or on-demand; capacity blocks and scheduled instances are not interrupted either."""
    return "spot" if record.get("InstanceLifecycle") == "spot" else "on-demand"


def _facts(record: Mapping[str, Any]) -> dict[str, str]:
    return {
        TYPE: record["InstanceType"],
        ZONE: record["Placement"]["AvailabilityZone"],
        MARKET: _market(record),
    }
