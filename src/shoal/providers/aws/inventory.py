"""Everything that clusters have in an account, Shoal's and Ray's, in every region: what runs, and
what was left behind."""

from __future__ import annotations

import os
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shoal.core.clock import Clock
from shoal.core.concurrency import run_all
from shoal.core.errors import AuthError, DeniedError, ProviderError, ShoalError
from shoal.core.events import Emit, Warned, ignore_events
from shoal.core.polling import PollUntilDeadline
from shoal.providers.aws import ebs, iam_roles, launch_config, tags
from shoal.providers.aws.client import AwsClient
from shoal.providers.aws.instances import TYPE, read_instance
from shoal.providers.aws.pricing import Prices
from shoal.providers.model import Instance, State

# Any region can tell which ones there are.
_FIRST_REGION = "us-east-1"
_PAUSE_SECONDS = 2.0
_END_SECONDS = 900.0
_OVER = (State.TERMINATING, State.TERMINATED)
_ON = (State.PENDING, State.RUNNING)
# As long as something of a cluster is younger than this, somebody may be bringing it up: its key
# and its workers can be there before its head is.
_NEW_SECONDS = 300.0


@dataclass(frozen=True)
class RetainedVolume:
    """A volume that outlives its machine because the file says so, and about what it costs."""

    id: str
    gib: int
    per_month: float


@dataclass(frozen=True)
class ClusterResources:
    """What one cluster has in one region: machines, in words what else carries its name, and the
    volumes that its file wanted to keep. `made` is when the last of it was made, as far as AWS
    tells."""

    cluster: str
    region: str
    by_shoal: bool
    instances: tuple[Instance, ...] = ()
    others: tuple[str, ...] = ()
    kept: tuple[RetainedVolume, ...] = ()
    made: float = 0.0

    @property
    def is_led(self) -> bool:
        return any(i.role == "head" for i in self.instances)

    def is_new(self, now: float) -> bool:
        """Whether it may be in the midst of being made."""
        return now - self.made < _NEW_SECONDS

    def is_orphan(self, now: float) -> bool:
        """Whether nobody leads it any more: it has no head, or no machine at all. Volumes that are
        kept wait for their owner, and for nobody else."""
        left_behind = bool(self.instances or self.others)
        return left_behind and not self.is_led and not self.is_new(now)


class _LedAgainError(ShoalError):
    """A cluster has a head that had none when it was looked at."""


# In words, and when it was made.
_Thing = tuple[str, float]


async def holdings(clock: Clock, emit: Emit) -> list[ClusterResources]:
    """What there is, in all regions that the account uses. A region that cannot be asked is told
    of and left out."""
    first = AwsClient(os.environ.get("AWS_REGION") or _FIRST_REGION, clock)
    regions = await first.call("ec2", "describe_regions")
    profiles = await _profiles(first, emit)

    async def one(region: str) -> list[ClusterResources]:
        try:
            return await _of_region(AwsClient(region, clock), profiles)
        except ProviderError as error:
            if isinstance(error, AuthError) and not isinstance(error, DeniedError):
                raise  # no region would say anything else
            emit(Warned(f"{region} cannot be asked", error.why, error.fix))
            return []

    found = await run_all(one(entry["RegionName"]) for entry in regions["Regions"])
    return sorted((h for some in found for h in some), key=lambda h: (h.region, h.cluster))


async def with_prices(
    found: Sequence[ClusterResources], clock: Clock, home: Path
) -> list[ClusterResources]:
    """The same, and what each machine that is on costs, as far as anyone knows: the catalog that
    is shipped has not every region, so AWS is asked."""

    async def one(region: str) -> list[ClusterResources]:
        prices = Prices(AwsClient(region, clock), home / "aws" / region)
        here = [h for h in found if h.region == region]
        on = {(i.tags[TYPE], i.market) for h in here for i in h.instances if i.state in _ON}
        spot = {name for name, market in on if market == "spot"}
        await prices.learn({name for name, market in on if market != "spot"}, spot)
        return [replace(h, instances=tuple(_priced(prices, i) for i in h.instances)) for h in here]

    regions = dict.fromkeys(holding.region for holding in found)
    return [h for some in await run_all(map(one, regions)) for h in some]


def _priced(prices: Prices, instance: Instance) -> Instance:
    if instance.state not in _ON:
        return instance
    price = prices.per_hour(instance.tags[TYPE], instance.market, instance.zone)
    return replace(instance, price_per_hour=price)


async def _profiles(aws: AwsClient, emit: Emit) -> list[iam_roles.Profile]:
    """Instance profiles belong to no region. Many people may not look at them, and need not."""
    try:
        return await iam_roles.everywhere(aws)
    except DeniedError as error:
        emit(Warned("instance profiles cannot be asked for", error.why, error.fix))
        return []


async def delete_orphan(holding: ClusterResources, clock: Clock, emit: Emit) -> list[str]:
    """End what a holding has, and tell what that was. Since it was looked at, a person has had
    time to think, and others to bring the cluster up: then nothing of it is touched."""
    aws = AwsClient(holding.region, clock)
    now = await _again(aws, holding)
    try:
        if not now.is_orphan(clock.now()):
            raise _LedAgainError("it has a head again" if now.is_led else "it is just being made")
        return await _end_all(aws, now, emit)
    except _LedAgainError as error:
        emit(Warned(f"{holding.cluster} in {holding.region} is left alone", error.what))
        return []


async def _again(aws: AwsClient, holding: ClusterResources) -> ClusterResources:
    """The holding as it is now. That profiles may not be looked at has been told."""
    found = await _of_region(aws, await _profiles(aws, ignore_events))
    nothing = ClusterResources(holding.cluster, holding.region, holding.by_shoal)
    same = (h for h in found if (h.cluster, h.by_shoal) == (holding.cluster, holding.by_shoal))
    return next(same, nothing)


async def _end_all(aws: AwsClient, holding: ClusterResources, emit: Emit) -> list[str]:
    await _end(aws, [i.id for i in holding.instances])
    removed = [f"instance {i.id}" for i in holding.instances]
    if not holding.by_shoal:
        return removed

    async def end_machines() -> bool:
        late = await _instances(aws, tags.of_cluster(holding.cluster))
        if any(i.role == "head" for i in late):
            raise _LedAgainError("it has a head again")
        await _end(aws, [i.id for i in late])
        return bool(late)

    removed += await launch_config.release(aws, holding.cluster, end_machines, emit)
    volumes_left = await _volumes(aws, tags.of_cluster(holding.cluster))
    for volume in volumes_left:
        if _is_kept(volume):
            continue
        await aws.call(
            "ec2",
            "delete_volume",
            ignoring=("InvalidVolume.NotFound",),
            VolumeId=volume["VolumeId"],
        )
        removed.append(f"volume {volume['VolumeId']}")
    return removed


async def _of_region(
    aws: AwsClient, profiles: Iterable[iam_roles.Profile]
) -> list[ClusterResources]:
    ours = [{"Name": "tag-key", "Values": [tags.CLUSTER]}]
    questions: list[Coroutine[Any, Any, list[Any]]] = [
        _instances(aws, [{"Name": "tag-key", "Values": [tags.RAY_CLUSTER]}]),
        aws.pages("ec2", "describe_security_groups", "SecurityGroups", Filters=ours),
        _key_pairs(aws, ours),
        _volumes(aws, ours),
    ]
    instances, groups, pairs, free = await run_all(questions)
    others: dict[str, list[_Thing]] = {}
    for kind, records, name in (
        ("security group", groups, "GroupName"),
        ("key pair", pairs, "KeyName"),
        ("volume", [one for one in free if not _is_kept(one)], "VolumeId"),
    ):
        for record in records:
            cluster = tags.as_dict(record.get("Tags"))[tags.CLUSTER]
            # Of a group AWS does not tell when it was made.
            made = record["CreateTime"].timestamp() if record.get("CreateTime") else 0.0
            others.setdefault(cluster, []).append((f"{kind} {record[name]}", made))
    for profile in profiles:
        if profile.name in iam_roles.names(profile.cluster, aws.region):
            thing = (f"instance profile {profile.name}", profile.made)
            others.setdefault(profile.cluster, []).append(thing)
    return _sorted_out(aws.region, instances, others, [one for one in free if _is_kept(one)])


def _is_kept(volume: Mapping[str, Any]) -> bool:
    return tags.KEEPS in tags.as_dict(volume.get("Tags"))


def _sorted_out(
    region: str,
    instances: Sequence[Instance],
    others: Mapping[str, Sequence[_Thing]],
    kept: Sequence[Mapping[str, Any]],
) -> list[ClusterResources]:
    found = {
        (cluster, True): ClusterResources(
            cluster,
            region,
            True,
            others=tuple(words for words, _ in things),
            made=max(made for _, made in things),
        )
        for cluster, things in others.items()
    }
    for instance in instances:
        by_shoal = tags.CLUSTER in instance.tags
        key = (instance.cluster, by_shoal)
        known = found.setdefault(key, ClusterResources(instance.cluster, region, by_shoal))
        made = max(known.made, instance.created_at or 0.0)
        found[key] = replace(known, instances=(*known.instances, instance), made=made)
    for volume in kept:
        cluster = tags.as_dict(volume["Tags"])[tags.CLUSTER]
        known = found.setdefault((cluster, True), ClusterResources(cluster, region, True))
        one = RetainedVolume(volume["VolumeId"], volume["Size"], ebs.per_month(volume))
        found[cluster, True] = replace(known, kept=(*known.kept, one))
    return list(found.values())


async def _instances(aws: AwsClient, filters: Sequence[Mapping[str, Any]]) -> list[Instance]:
    pages = await aws.pages("ec2", "describe_instances", "Reservations", Filters=filters)
    found = [read_instance(record, "") for page in pages for record in page["Instances"]]
    return [
        replace(i, cluster=i.cluster or i.tags.get(tags.RAY_CLUSTER, ""))
        for i in found
        if i.state not in _OVER
    ]


async def _key_pairs(aws: AwsClient, filters: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    answer = await aws.call("ec2", "describe_key_pairs", Filters=filters)
    return list(answer["KeyPairs"])


async def _volumes(aws: AwsClient, filters: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Those that no machine has."""
    free = {"Name": "status", "Values": ["available"]}
    return await aws.pages("ec2", "describe_volumes", "Volumes", Filters=[*filters, free])


async def _end(aws: AwsClient, ids: Sequence[str]) -> None:
    """End machines, and return when AWS says that they are over."""
    if not ids:
        return
    gone = ("InvalidInstanceID.NotFound",)
    await aws.call("ec2", "terminate_instances", ignoring=gone, InstanceIds=list(ids))
    mine = [{"Name": "instance-id", "Values": list(ids)}]
    states: set[str] = set()
    async for _ in PollUntilDeadline(aws.clock, _END_SECONDS, _PAUSE_SECONDS):
        pages = await aws.pages("ec2", "describe_instances", "Reservations", Filters=mine)
        states = {r["State"]["Name"] for page in pages for r in page["Instances"]}
        if states <= {"terminated"}:
            return
    raise ShoalError(
        "AWS has not ended the machines yet",
        why=f"they are {', '.join(sorted(states))} after {_END_SECONDS:.0f} s",
        fix="the same command again, later",
    )
