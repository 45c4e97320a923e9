"""Baked AMIs as EC2 reports them: finds them and their snapshots by tag, and deletes them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from shoal.core.concurrency import run_all
from shoal.providers.aws import tags
from shoal.providers.aws.aws_client import AwsClient
from shoal.providers.baked_images import BakedImage

_log = logging.getLogger(__name__)

GONE = ("InvalidAMIID.NotFound", "InvalidAMIID.Unavailable")
_NO_SNAPSHOT = "InvalidSnapshot.NotFound"
# US dollars per GiB and month of what a snapshot stores; the same in most regions.
_SNAPSHOT_RATE = 0.05


@dataclass(frozen=True)
class ImageStore:
    """The baked AMIs of one account in one region."""

    aws: AwsClient

    async def list_images(self, cluster: str | None) -> list[BakedImage]:
        """The AMIs of one cluster, or of every cluster."""
        filters = tags.cluster_filter(cluster)
        images, snapshots = await run_all([self.describe(filters), self._snapshots(filters)])
        by_id = {snapshot["SnapshotId"]: snapshot for snapshot in snapshots}
        return [_read(image, by_id) for image in images]

    async def leftover_snapshots(self, cluster: str | None) -> list[dict[str, Any]]:
        """Records of snapshots whose AMI is gone: its deletion was interrupted. Both have the same
        key, which is known before EC2 lists the snapshots of an AMI. The snapshots are listed
        first, so that those of an AMI that is created meanwhile are not among them."""
        filters = tags.cluster_filter(cluster)
        snapshots = await self._snapshots(filters)
        images = await self.describe(filters) if snapshots else []
        keys = {tags.as_dict(image["Tags"])[tags.IMAGE_KEY] for image in images}
        return [s for s in snapshots if tags.as_dict(s["Tags"])[tags.IMAGE_KEY] not in keys]

    async def delete(self, cluster: str, images: Sequence[BakedImage]) -> list[str]:
        """Delete these AMIs with their snapshots, and leftover snapshots of the cluster."""
        ids = {image.id for image in images}
        records = await self.describe(tags.cluster_filter(cluster))
        deleted = await self.delete_records(r for r in records if r["ImageId"] in ids)
        return [*deleted, *await self.delete_leftover_snapshots(cluster)]

    async def delete_leftover_snapshots(self, cluster: str) -> list[str]:
        """Delete the snapshots of a cluster whose AMI is gone, and return what was deleted."""
        ids = [str(record["SnapshotId"]) for record in await self.leftover_snapshots(cluster)]
        for id in ids:
            await self._delete_snapshot(id)
        return [f"snapshot {id}" for id in ids]

    async def delete_records(self, records: Iterable[Mapping[str, Any]]) -> list[str]:
        """Delete the AMIs of these records and their snapshots, which EC2 keeps otherwise."""
        deleted = []
        for record in records:
            id = str(record["ImageId"])
            await self.deregister(id)
            deleted.append(f"AMI {id}")
            for snapshot in snapshot_ids(record):
                await self._delete_snapshot(snapshot)
                deleted.append(f"snapshot {snapshot}")
        return deleted

    async def deregister(self, id: str) -> None:
        """Delete an AMI, without its snapshots."""
        await self.aws.call("ec2", "deregister_image", ignore_codes=GONE, ImageId=id)
        _log.info("deregistered %s", id)

    async def _delete_snapshot(self, id: str) -> None:
        await self.aws.call("ec2", "delete_snapshot", ignore_codes=(_NO_SNAPSHOT,), SnapshotId=id)
        _log.info("deleted %s", id)

    async def describe(self, filters: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """EC2's records of this account's own AMIs that were baked."""
        response = await self.aws.call(
            "ec2",
            "describe_images",
            Owners=["self"],
            Filters=[*filters, {"Name": "tag-key", "Values": [tags.IMAGE_KEY]}],
            IncludeDeprecated=True,
        )
        return list(response["Images"])

    async def _snapshots(self, filters: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        is_baked = {"Name": "tag-key", "Values": [tags.IMAGE_KEY]}
        return await self.aws.paginate(
            "ec2",
            "describe_snapshots",
            "Snapshots",
            OwnerIds=["self"],
            Filters=[*filters, is_baked],
        )


def snapshot_ids(image: Mapping[str, Any]) -> list[str]:
    """The snapshots of an AMI, as far as they exist yet."""
    mappings = image.get("BlockDeviceMappings") or ()
    ids = ((mapping.get("Ebs") or {}).get("SnapshotId") for mapping in mappings)
    return [str(id) for id in ids if id]


def state_of(image: Mapping[str, Any]) -> Literal["pending", "available", "failed"]:
    """The state of an AMI; every other one of EC2's is a failure."""
    if image.get("State") == "pending":
        return "pending"
    return "available" if image.get("State") == "available" else "failed"


def _read(image: Mapping[str, Any], snapshots: Mapping[str, Mapping[str, Any]]) -> BakedImage:
    labels = tags.as_dict(image.get("Tags"))
    own = [snapshots[id] for id in snapshot_ids(image) if id in snapshots]
    stored = [snapshot.get("FullSnapshotSizeInBytes") for snapshot in own]
    is_exact = bool(stored) and all(stored)
    gib = (
        sum(size or 0 for size in stored) / 2**30
        if is_exact
        else float(sum(snapshot.get("VolumeSize") or 0 for snapshot in own))
    )
    created = datetime.fromisoformat(str(image["CreationDate"]).replace("Z", "+00:00"))
    return BakedImage(
        id=str(image["ImageId"]),
        cluster=labels.get(tags.CLUSTER, ""),
        node_type=labels.get(tags.RAY_USER_NODE_TYPE, ""),
        setup_hash=labels.get(tags.SETUP_HASH, ""),
        base=labels.get(tags.BASE_IMAGE, ""),
        state=state_of(image),
        created_at=created.timestamp(),
        gib=gib,
        per_month=gib * _SNAPSHOT_RATE,
        is_exact=is_exact,
    )
