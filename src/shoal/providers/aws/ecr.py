"""ECR, AWS's container registry: which repository an image is in, and the login for it.

A login token is valid for 12 hours and equals a password: it must stay in memory.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from shoal.providers.aws.aws_client import AwsClient
from shoal.providers.model import RegistryLogin
from shoal.spec.cluster_spec import ClusterSpec, ContainerSpec

_IMAGE = re.compile(
    r"(?P<server>(?P<account>\d{12})\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(\.cn)?)"
    r"/(?P<name>[^:@]+)"
)


@dataclass(frozen=True)
class Repository:
    """A repository in ECR, in any account."""

    server: str
    account: str
    region: str
    name: str

    @property
    def arn(self) -> str:
        partition = "aws-cn" if self.server.endswith(".cn") else "aws"
        return f"arn:{partition}:ecr:{self.region}:{self.account}:repository/{self.name}"


def repository(image: str) -> Repository | None:
    """The ECR repository of an image; None if it is in another registry."""
    match = _IMAGE.match(image)
    if match is None:
        return None
    return Repository(*(match[part] for part in ("server", "account", "region", "name")))


def repository_arns(spec: ClusterSpec) -> list[str]:
    """The ARNs of all ECR repositories that a cluster's nodes pull from."""
    setups = (spec.head_setup, *(node_type.setup for node_type in spec.node_types.values()))
    repositories = map(repository, _images(setup.container for setup in setups))
    return sorted({entry.arn for entry in repositories if entry is not None})


def _images(containers: Iterable[ContainerSpec | None]) -> list[str]:
    return [container.image for container in containers if container is not None]


async def login(aws: AwsClient, image: str) -> RegistryLogin | None:
    """The login for an image's registry; None if it is not ECR. A token is valid for every
    registry of its region that the caller may read."""
    source = repository(image)
    if source is None:
        return None

    async def load() -> dict[str, Any]:
        return await aws.in_region(source.region).call("ecr", "get_authorization_token")

    response = await aws.cached(f"ECR login in {source.region}", load)
    token = response["authorizationData"][0]["authorizationToken"]
    username, _, password = base64.b64decode(token).decode().partition(":")
    return RegistryLogin(source.server, username, password)
