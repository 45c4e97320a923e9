"""Which image a machine starts from when the file names none: looked up by AWS's own public
parameters, which follow the publishers' releases, so that no table here goes stale."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.core.errors import ConfigError
from shoal.providers.aws.client import AwsClient
from shoal.providers.aws.instance_types import MachineType

LATEST_DLAMI = "latest_dlami"

# The newest Ubuntu whose own Python lets `pip install` in, as setup commands everywhere expect.
_UBUNTU = "/aws/service/canonical/ubuntu/server/22.04/stable/current/{}/hvm/ebs-gp2/ami-id"
_DEEP_LEARNING = (
    "/aws/service/deeplearning/ami/{}/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
)
_CANONICAL_WORD = {"x86_64": "amd64", "arm64": "arm64"}


def is_named(image: str | None) -> bool:
    """Whether the file says itself which image it wants."""
    return bool(image) and image != LATEST_DLAMI


def parameter_for(
    image: str | None, machine: MachineType, *, in_container: bool = False
) -> str | None:
    """The parameter that names the image, or None when the file names it itself. A machine with
    GPUs gets the image that has their drivers, and one whose node lives in a container the same,
    since that has Docker, too."""
    if image == LATEST_DLAMI or (not image and (machine.has_nvidia or in_container)):
        return _DEEP_LEARNING.format(machine.architecture)
    if not image:
        return _UBUNTU.format(_CANONICAL_WORD[machine.architecture])
    return None


class Defaults:
    """The images of a region that its machines start from by default, all asked for at once and
    before it is known which are needed: one call is as long as ten names."""

    def __init__(self, region: str, found: Mapping[str, str]) -> None:
        self._region = region
        self._found = found

    @classmethod
    async def look_up(cls, aws: AwsClient) -> Defaults:
        names = [_UBUNTU.format(word) for word in _CANONICAL_WORD.values()]
        names += [_DEEP_LEARNING.format(word) for word in _CANONICAL_WORD]
        answer = await aws.once("images", lambda: aws.call("ssm", "get_parameters", Names=names))
        return cls(aws.region, {one["Name"]: one["Value"] for one in answer["Parameters"]})

    @property
    def ids(self) -> set[str]:
        """All of them."""
        return set(self._found.values())

    def image(self, parameter: str) -> str:
        """The image id behind a parameter."""
        if parameter not in self._found:
            raise ConfigError(
                f"there is no default image in {self._region}",
                why=f"AWS knows no parameter {parameter} there",
                fix="name an image that the region has: node_config: {ImageId: ami-...}",
            )
        return self._found[parameter]
