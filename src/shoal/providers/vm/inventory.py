"""The inventory of an account or project: what Shoal's and Ray's clusters have in it, running or
left behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from shoal.core.errors import ShoalError
from shoal.providers.baked_images import BakedImage
from shoal.providers.model import Instance

# While a cluster has a resource younger than this, an `up` may still be running: its key pair and
# its workers can exist before its head.
NEW_SECONDS = 300.0


@dataclass(frozen=True)
class RetainedVolume:
    """A volume that outlives its instance because the file says so, its approximate cost, and the
    command that deletes it."""

    id: str
    gib: int
    per_month: float | None
    delete_command: str


@dataclass(frozen=True)
class ClusterResources:
    """What one cluster has in one place of a cloud, such as `aws us-west-2`: its instances, its
    other resources as text, the volumes that its file retains, and the images that were baked for
    it. `created_at` is the time of the newest, as far as the cloud reports it. `by_shoal` is false
    for clusters of Ray's own launcher."""

    cluster: str
    region: str
    by_shoal: bool
    instances: tuple[Instance, ...] = ()
    others: tuple[str, ...] = ()
    retained: tuple[RetainedVolume, ...] = ()
    images: tuple[BakedImage, ...] = ()
    created_at: float = 0.0
    cloud: str = "aws"

    @property
    def has_head(self) -> bool:
        return any(i.role == "head" for i in self.instances)

    def is_new(self, now: float) -> bool:
        """Whether the cluster may still be coming up."""
        return now - self.created_at < NEW_SECONDS

    def is_orphan(self, now: float) -> bool:
        """Whether resources are left without a head. Retained volumes alone are not orphans."""
        has_leftovers = bool(self.instances or self.others)
        return has_leftovers and not self.has_head and not self.is_new(now)


class NotOrphanedError(ShoalError):
    """The cluster got a head, or new resources, since it was listed."""


class Inventory(Protocol):
    """The clusters of one account or project."""

    async def list_clusters(self) -> list[ClusterResources]:
        """The resources of all clusters in all regions."""
        ...

    async def add_prices(self, clusters: Sequence[ClusterResources]) -> list[ClusterResources]:
        """The same clusters with the price of each running instance, where it is known."""
        ...

    async def delete_orphan(self, orphan: ClusterResources) -> list[str]:
        """Delete an orphan's resources, and return what was deleted. The cluster is listed again
        first: if an `up` has started since, nothing is touched."""
        ...

    async def delete_images(
        self, cluster: ClusterResources, images: Sequence[BakedImage]
    ) -> list[str]:
        """Delete these of a cluster's images."""
        ...
