"""The account-wide inventory: what Shoal's and Ray's clusters have in every region, running or left
behind, and the deletion of orphans."""

from __future__ import annotations

import logging
import os
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shoal.core.clock import Clock
from shoal.core.concurrency import run_all
from shoal.core.errors import AuthError, DeniedError, ProviderError, ShoalError
from shoal.core.events import Emit, Warned, ignore_events
from shoal.core.polling import PollUntilDeadline
from shoal.providers.aws import cluster_resources, ebs, iam_roles, tags
from shoal.providers.aws.aws_client import AwsClient
from shoal.providers.aws.image_store import ImageStore
from shoal.providers.aws.instances import (
    TYPE,
    describe_records,
    list_records,
    read_instance,
    request_termination,
)
from shoal.providers.aws.pricing import Prices
from shoal.providers.baked_images import BakedImage
from shoal.providers.model import Instance, State
from shoal.providers.vm.inventory import (
    NEW_SECONDS,
    ClusterResources,
    NotOrphanedError,
    RetainedVolume,
)
from shoal.providers.vm.waiters import TERMINAL_STATES

_log = logging.getLogger(__name__)

# Every region can list the account's regions.
_DEFAULT_REGION = "us-east-1"
_PAUSE_SECONDS = 2.0
_TERMINATE_SECONDS = 900.0
_RUNNING_STATES = (State.PENDING, State.RUNNING)


# A resource as text, and when it was created.
_Resource = tuple[str, float]


class AwsInventory:
    """The clusters of an account. `home` has local price tables."""

    def __init__(self, clock: Clock, emit: Emit, home: Path) -> None:
        self._clock = clock
        self._emit = emit
        self._home = home

    async def list_clusters(self) -> list[ClusterResources]:
        return await _list_cluster_resources(self._clock, self._emit)

    async def add_prices(self, clusters: Sequence[ClusterResources]) -> list[ClusterResources]:
        return await _add_prices(clusters, self._clock, self._home)

    async def delete_orphan(self, orphan: ClusterResources) -> list[str]:
        return await _delete_orphan(orphan, self._clock, self._emit)

    async def delete_images(
        self, cluster: ClusterResources, images: Sequence[BakedImage]
    ) -> list[str]:
        store = ImageStore(AwsClient(cluster.region, self._clock))
        return await store.delete(cluster.cluster, images)


async def _list_cluster_resources(clock: Clock, emit: Emit) -> list[ClusterResources]:
    """The resources of all clusters in all enabled regions. A region that cannot be listed is
    skipped with a warning."""
    first = AwsClient(os.environ.get("AWS_REGION") or _DEFAULT_REGION, clock)
    regions = await first.call("ec2", "describe_regions")
    profiles = await _profiles(first, emit)

    async def list_region(region: str) -> list[ClusterResources]:
        try:
            return await _list_region(AwsClient(region, clock), profiles)
        except ProviderError as error:
            if isinstance(error, AuthError) and not isinstance(error, DeniedError):
                raise  # every other region would fail in the same way
            emit(Warned(f"could not list {region}", error.why, error.fix))
            return []

    by_region = await run_all(list_region(entry["RegionName"]) for entry in regions["Regions"])
    clusters = [cluster for some in by_region for cluster in some]
    return sorted(clusters, key=lambda entry: (entry.region, entry.cluster))


async def _add_prices(
    clusters: Sequence[ClusterResources], clock: Clock, home: Path
) -> list[ClusterResources]:
    """The same clusters with the price of each running instance. AWS is asked, since the shipped
    catalog does not cover every region."""

    async def add(region: str) -> list[ClusterResources]:
        prices = Prices(AwsClient(region, clock), home / "aws" / region)
        local = [cluster for cluster in clusters if cluster.region == region]
        running = {
            (i.tags[TYPE], i.market)
            for cluster in local
            for i in cluster.instances
            if i.state in _RUNNING_STATES
        }
        spot = {name for name, market in running if market == "spot"}
        await prices.refresh({name for name, market in running if market != "spot"}, spot)
        return [
            replace(cluster, instances=tuple(_with_price(prices, i) for i in cluster.instances))
            for cluster in local
        ]

    regions = dict.fromkeys(cluster.region for cluster in clusters)
    return [cluster for some in await run_all(map(add, regions)) for cluster in some]


def _with_price(prices: Prices, instance: Instance) -> Instance:
    if instance.state not in _RUNNING_STATES:
        return instance
    price = prices.per_hour(instance.tags[TYPE], instance.market, instance.zone)
    return replace(instance, price_per_hour=price)


async def _profiles(aws: AwsClient, emit: Emit) -> list[iam_roles.Profile]:
    """Instance profiles are global. Many users may not list them, and do not need to."""
    try:
        return await iam_roles.list_profiles(aws)
    except DeniedError as error:
        emit(Warned("could not list instance profiles", error.why, error.fix))
        return []


async def _delete_orphan(orphan: ClusterResources, clock: Clock, emit: Emit) -> list[str]:
    """Delete an orphan's resources, and return what was deleted. The cluster is listed again
    first: if an `up` has started since, nothing is touched."""
    aws = AwsClient(orphan.region, clock)
    current = await _list_again(aws, orphan)
    try:
        if not current.is_orphan(clock.now()):
            raise NotOrphanedError(
                "it has a head again" if current.has_head else "it is just being created"
            )
        return await _delete_all(aws, current, emit)
    except NotOrphanedError as error:
        emit(Warned(f"{orphan.cluster} in {orphan.region} is not deleted", error.what))
        return []


async def _list_again(aws: AwsClient, cluster: ClusterResources) -> ClusterResources:
    """The cluster's current resources. A warning about instance profiles was shown already."""
    listed = await _list_region(aws, await _profiles(aws, ignore_events))
    key = (cluster.cluster, cluster.by_shoal)
    nothing = ClusterResources(cluster.cluster, cluster.region, cluster.by_shoal)
    return next((entry for entry in listed if (entry.cluster, entry.by_shoal) == key), nothing)


async def _delete_all(aws: AwsClient, orphan: ClusterResources, emit: Emit) -> list[str]:
    await _terminate(aws, [i.id for i in orphan.instances])
    deleted = [f"instance {i.id}" for i in orphan.instances]
    if not orphan.by_shoal:
        return deleted

    async def terminate_late_instances() -> bool:
        instances = await _instances(aws, tags.cluster_filter(orphan.cluster))
        if any(i.role == "head" for i in instances):
            raise NotOrphanedError("it has a head again")
        await _terminate(aws, [i.id for i in instances])
        return bool(instances)

    deleted += await cluster_resources.delete_resources(
        aws, orphan.cluster, terminate_late_instances, emit
    )
    deleted += await ImageStore(aws).delete(orphan.cluster, ())
    for volume in await _detached_volumes(aws, tags.cluster_filter(orphan.cluster)):
        if _is_retained(volume):
            continue
        await aws.call(
            "ec2",
            "delete_volume",
            ignore_codes=("InvalidVolume.NotFound",),
            VolumeId=volume["VolumeId"],
        )
        _log.info("deleted volume %s of cluster %s", volume["VolumeId"], orphan.cluster)
        deleted.append(f"volume {volume['VolumeId']}")
    return deleted


async def _list_region(
    aws: AwsClient, profiles: Iterable[iam_roles.Profile]
) -> list[ClusterResources]:
    by_shoal = [{"Name": "tag-key", "Values": [tags.CLUSTER]}]
    listings: list[Coroutine[Any, Any, list[Any]]] = [
        _instances(aws, [{"Name": "tag-key", "Values": [tags.RAY_CLUSTER_NAME]}]),
        aws.paginate("ec2", "describe_security_groups", "SecurityGroups", Filters=by_shoal),
        _key_pairs(aws, by_shoal),
        _detached_volumes(aws, by_shoal),
        ImageStore(aws).list_images(None),
        _leftover_snapshots(aws),
    ]
    instances, groups, pairs, volumes, images, snapshots = await run_all(listings)
    others: dict[str, list[_Resource]] = {}
    for title, records, name in (
        ("security group", groups, "GroupName"),
        ("key pair", pairs, "KeyName"),
        ("volume", [volume for volume in volumes if not _is_retained(volume)], "VolumeId"),
    ):
        for record in records:
            cluster = tags.as_dict(record.get("Tags"))[tags.CLUSTER]
            # EC2 does not report when a security group was created.
            created_at = record["CreateTime"].timestamp() if record.get("CreateTime") else 0.0
            others.setdefault(cluster, []).append((f"{title} {record[name]}", created_at))
    for profile in profiles:
        if profile.name in iam_roles.profile_names(profile.cluster, aws.region):
            resource = (f"instance profile {profile.name}", profile.created_at)
            others.setdefault(profile.cluster, []).append(resource)
    for id, cluster in snapshots:
        others.setdefault(cluster, []).append((f"snapshot {id}", 0.0))
    retained = [volume for volume in volumes if _is_retained(volume)]
    return _group_by_cluster(aws.region, instances, others, retained, images)


def _is_retained(volume: Mapping[str, Any]) -> bool:
    return tags.RETAINED in tags.as_dict(volume.get("Tags"))


def _group_by_cluster(
    region: str,
    instances: Sequence[Instance],
    others: Mapping[str, Sequence[_Resource]],
    retained: Sequence[Mapping[str, Any]],
    images: Sequence[BakedImage],
) -> list[ClusterResources]:
    clusters = {
        (cluster, True): ClusterResources(
            cluster,
            region,
            True,
            others=tuple(text for text, _ in entries),
            created_at=max(created_at for _, created_at in entries),
        )
        for cluster, entries in others.items()
    }
    for instance in instances:
        by_shoal = tags.CLUSTER in instance.tags
        key = (instance.cluster, by_shoal)
        known = clusters.setdefault(key, ClusterResources(instance.cluster, region, by_shoal))
        clusters[key] = replace(
            known,
            instances=(*known.instances, instance),
            created_at=max(known.created_at, instance.created_at or 0.0),
        )
    for volume in retained:
        cluster = tags.as_dict(volume["Tags"])[tags.CLUSTER]
        known = clusters.setdefault((cluster, True), ClusterResources(cluster, region, True))
        id = volume["VolumeId"]
        delete = f"aws ec2 delete-volume --region {region} --volume-id {id}"
        entry = RetainedVolume(id, volume["Size"], ebs.monthly_cost(volume), delete)
        clusters[cluster, True] = replace(known, retained=(*known.retained, entry))
    for image in images:
        key = (image.cluster, True)
        known = clusters.setdefault(key, ClusterResources(image.cluster, region, True))
        clusters[key] = replace(known, images=(*known.images, image))
    return list(clusters.values())


async def _instances(aws: AwsClient, filters: Sequence[Mapping[str, Any]]) -> list[Instance]:
    instances = [read_instance(record, "") for record in await list_records(aws, filters)]
    return [
        replace(i, cluster=i.cluster or i.tags.get(tags.RAY_CLUSTER_NAME, ""))
        for i in instances
        if i.state not in TERMINAL_STATES
    ]


async def _leftover_snapshots(aws: AwsClient) -> list[tuple[str, str]]:
    """Snapshots without an image, and their clusters. The image of a new one may not be listed
    yet."""
    leftover = await ImageStore(aws).leftover_snapshots(None)
    return [
        (str(snapshot["SnapshotId"]), tags.as_dict(snapshot["Tags"])[tags.CLUSTER])
        for snapshot in leftover
        if aws.clock.now() - snapshot["StartTime"].timestamp() > NEW_SECONDS
    ]


async def _key_pairs(aws: AwsClient, filters: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    response = await aws.call("ec2", "describe_key_pairs", Filters=filters)
    return list(response["KeyPairs"])


async def _detached_volumes(
    aws: AwsClient, filters: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    available = {"Name": "status", "Values": ["available"]}
    return await aws.paginate("ec2", "describe_volumes", "Volumes", Filters=[*filters, available])


async def _terminate(aws: AwsClient, ids: Sequence[str]) -> None:
    """Terminate instances, and return when EC2 reports them as terminated."""
    if not ids:
        return
    _log.info("terminating orphaned instances in %s: %s", aws.region, ", ".join(ids))
    await request_termination(aws, ids)
    states: set[str] = set()
    async for _ in PollUntilDeadline(aws.clock, _TERMINATE_SECONDS, _PAUSE_SECONDS):
        # What EC2 has forgotten is gone.
        states = {record["State"]["Name"] for record in await describe_records(aws, ids)}
        if states <= {"terminated"}:
            return
    raise ShoalError(
        "AWS has not terminated the instances yet",
        why=f"they are {', '.join(sorted(states))} after {_TERMINATE_SECONDS:.0f} s",
        fix="run the same command again later",
    )
