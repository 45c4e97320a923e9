"""Images that a provider makes of nodes that were set up, so that later nodes start from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from shoal.core.node_phase import Role
from shoal.providers.model import Instance
from shoal.spec.cluster_spec import ClusterSpec


@dataclass(frozen=True)
class BakedImage:
    """An image, which cluster and node type it is for, and the setup hash of the node that it was
    made of. `base` is the image that the node itself was launched from. Costs are US dollars per
    month; `is_exact` is false if they are an upper bound."""

    id: str
    cluster: str
    node_type: str
    setup_hash: str
    base: str
    state: Literal["pending", "available", "failed"]
    created_at: float
    gib: float = 0.0
    per_month: float = 0.0
    is_exact: bool = False


@dataclass(frozen=True)
class StaleImage:
    """An image that the file no longer asks for, and why."""

    image: BakedImage
    why: str


@dataclass(frozen=True)
class NodeImage:
    """What nodes of a type in a role are launched from: an image that was baked, or the base."""

    node_type: str
    role: Role
    base: str
    baked: BakedImage | None = None


# Setup hashes by node type and role.
SetupHashes = Mapping[tuple[str, Role], str]


class ImageService(Protocol):
    """Makes, finds and deletes images. Every method may raise `ProviderError`."""

    async def bake(
        self, spec: ClusterSpec, instance: Instance, setup_hash: str, state: str
    ) -> str | None:
        """Make an image of an instance on which setup is complete and Ray does not run yet, unless
        there is one, and return its id. Returns as soon as later changes on the instance are not
        part of it. `state` is the content of the file that says what was applied to the node."""
        ...

    async def list_images(self, cluster: str) -> Sequence[BakedImage]:
        """All images of a cluster, also those that are not complete or failed."""
        ...

    async def node_images(self, spec: ClusterSpec, hashes: SetupHashes) -> Sequence[NodeImage]:
        """What nodes of these types would be launched from now."""
        ...

    async def find_stale(self, spec: ClusterSpec, hashes: SetupHashes) -> Sequence[StaleImage]:
        """The images of the cluster that no node of these types would be launched from."""
        ...

    async def delete(self, cluster: str, images: Sequence[BakedImage]) -> Sequence[str]:
        """Delete these images and their snapshots, and snapshots whose image is gone. Returns
        descriptions of what was deleted."""
        ...
