"""The default AMIs, for files that name none. They are looked up in AWS's public SSM parameters,
which follow the publishers' releases, so there is no table here that could go stale."""

from __future__ import annotations

import logging
from collections.abc import Collection, Coroutine, Mapping
from typing import Any

from shoal.core.concurrency import run_all
from shoal.core.errors import ConfigError, DeniedError
from shoal.providers.aws.aws_client import AwsClient
from shoal.providers.aws.instance_types import InstanceTypeInfo

_log = logging.getLogger(__name__)

LATEST_DLAMI = "latest_dlami"
# The codes for an AMI that does not exist, or can no longer be used.
UNKNOWN = ("InvalidAMIID.NotFound", "InvalidAMIID.Malformed", "InvalidAMIID.Unavailable")
# RunInstances accepts this prefix and the name of an SSM parameter instead of an AMI id.
RESOLVE_SSM = "resolve:ssm:"

# The newest Ubuntu whose system Python still allows `pip install`, as setup commands expect.
_UBUNTU = "/aws/service/canonical/ubuntu/server/22.04/stable/current/{}/hvm/ebs-gp2/ami-id"
_DEEP_LEARNING = (
    "/aws/service/deeplearning/ami/{}/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
)
# NVIDIA's open kernel modules need GPUs of the Turing generation or newer.
_DEEP_LEARNING_OLD_GPUS = (
    "/aws/service/deeplearning/ami/x86_64/base-proprietary-nvidia-driver-gpu-ubuntu-20.04/latest/"
    "ami-id"
)
_OLD_GPU_FAMILIES = ("g2", "g3", "g3s", "p2", "p3", "p3dn")
_CANONICAL_ARCHITECTURES = {"x86_64": "amd64", "arm64": "arm64"}


def is_explicit(image: str | None) -> bool:
    """Whether the file names an AMI itself."""
    return bool(image) and image != LATEST_DLAMI


def ssm_parameter(
    image: str | None, type_info: InstanceTypeInfo, *, in_container: bool = False
) -> str | None:
    """The SSM parameter that holds the AMI; None when the file names an AMI itself. Types with
    NVIDIA GPUs get the Deep Learning AMI, which has drivers for their generation, and so do nodes
    in containers, since it has Docker too."""
    if image == LATEST_DLAMI or (not image and (type_info.has_nvidia_gpu or in_container)):
        if type_info.name.partition(".")[0] in _OLD_GPU_FAMILIES:
            return _DEEP_LEARNING_OLD_GPUS
        return _DEEP_LEARNING.format(type_info.architecture)
    if not image:
        return _UBUNTU.format(_CANONICAL_ARCHITECTURES[type_info.architecture])
    return None


async def describe(aws: AwsClient, ids: Collection[str]) -> dict[str, dict[str, Any]]:
    """The records of these AMIs by id, as far as they exist. They are looked up by id, since a
    filter hides deprecated ones, which public AMIs are after two years but which still launch; and
    one at a time, since one unknown id fails the whole call."""

    async def load(id: str) -> list[dict[str, Any]]:
        response = await aws.call(
            "ec2", "describe_images", ignore_codes=UNKNOWN, ImageIds=[id], IncludeDeprecated=True
        )
        return list(response.get("Images", ()))

    def look_up(id: str) -> Coroutine[Any, Any, list[dict[str, Any]]]:
        return aws.cached(f"image {id}", lambda: load(id))

    found = await run_all(map(look_up, sorted(set(ids))))
    return {image["ImageId"]: image for images in found for image in images}


async def resolve_ssm(aws: AwsClient, image: str) -> str:
    """The AMI that `resolve:ssm:NAME` stands for. Unchanged if the caller cannot read the
    parameter: EC2 resolves it too."""
    name = image.removeprefix(RESOLVE_SSM)
    try:
        response = await aws.cached(
            f"parameter {name}", lambda: aws.call("ssm", "get_parameters", Names=[name])
        )
    except (DeniedError, ConfigError) as error:
        _log.info("could not read the SSM parameter %s: %s", name, error.why)
        return image
    values = [str(entry["Value"]) for entry in response["Parameters"]]
    return values[0] if values else image


class DefaultAmis:
    """The default AMIs of a region. All are looked up in one call, before it is known which of
    them are needed: the call takes equally long for one name and for ten."""

    def __init__(self, region: str, amis: Mapping[str, str]) -> None:
        self._region = region
        self._amis = amis

    @classmethod
    async def look_up(cls, aws: AwsClient) -> DefaultAmis:
        names = [_UBUNTU.format(name) for name in _CANONICAL_ARCHITECTURES.values()]
        names += [_DEEP_LEARNING.format(name) for name in _CANONICAL_ARCHITECTURES]
        names.append(_DEEP_LEARNING_OLD_GPUS)
        response = await aws.cached("amis", lambda: aws.call("ssm", "get_parameters", Names=names))
        return cls(aws.region, {entry["Name"]: entry["Value"] for entry in response["Parameters"]})

    @property
    def ids(self) -> set[str]:
        return set(self._amis.values())

    def ami(self, parameter: str) -> str:
        """The id of the AMI that a parameter holds."""
        if parameter not in self._amis:
            raise ConfigError(
                f"there is no default AMI in {self._region}",
                why=f"the region has no SSM parameter {parameter}",
                fix="name an AMI of the region: node_config: {ImageId: ami-...}",
            )
        return self._amis[parameter]
