"""AWS's own registry of images (ECR): whose an image is, and the way in to it.

A token lasts half a day and is as good as a password: it is handed on in memory only.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from shoal.providers.aws.client import AwsClient
from shoal.providers.model import RegistryLogin
from shoal.spec.cluster_spec import ClusterSpec, ContainerSpec

_IMAGE = re.compile(
    r"(?P<server>(?P<account>\d{12})\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(\.cn)?)"
    r"/(?P<name>[^:@]+)"
)


@dataclass(frozen=True)
class Repository:
    """A repository of images in somebody's account."""

    server: str
    account: str
    region: str
    name: str

    @property
    def arn(self) -> str:
        partition = "aws-cn" if self.server.endswith(".cn") else "aws"
        return f"arn:{partition}:ecr:{self.region}:{self.account}:repository/{self.name}"


def repository(image: str) -> Repository | None:
    """Where in ECR an image is; None for one that is elsewhere."""
    found = _IMAGE.match(image)
    if found is None:
        return None
    return Repository(*(found[part] for part in ("server", "account", "region", "name")))


def repositories(spec: ClusterSpec) -> list[str]:
    """The ARNs of all repositories that a cluster's nodes pull from."""
    setups = (spec.head_setup, *(node_type.setup for node_type in spec.node_types.values()))
    found = map(repository, _images(setup.container for setup in setups))
    return sorted({one.arn for one in found if one is not None})


def _images(containers: Iterable[ContainerSpec | None]) -> list[str]:
    return [container.image for container in containers if container is not None]


async def login(aws: AwsClient, image: str) -> RegistryLogin | None:
    """The way in to an image's registry, if it is one of AWS's. A token opens every registry of
    its region that the caller may read."""
    place = repository(image)
    if place is None:
        return None

    async def ask() -> dict[str, Any]:
        return await aws.elsewhere(place.region).call("ecr", "get_authorization_token")

    answer = await aws.once(f"the way in to images in {place.region}", ask)
    token = answer["authorizationData"][0]["authorizationToken"]
    username, _, password = base64.b64decode(token).decode().partition(":")
    return RegistryLogin(place.server, username, password)
