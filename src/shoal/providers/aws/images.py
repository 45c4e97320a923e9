"""Which image a machine starts from when the file names none: looked up by AWS's own public
parameters, which follow the publishers' releases, so that no table here goes stale."""

from __future__ import annotations

from collections.abc import Collection

from shoal.errors import ConfigError
from shoal.providers.aws.calls import Aws
from shoal.providers.aws.types import MachineType

LATEST_DLAMI = "latest_dlami"

# The newest Ubuntu whose own Python lets `pip install` in, as setup commands everywhere expect.
_UBUNTU = "/aws/service/canonical/ubuntu/server/22.04/stable/current/{}/hvm/ebs-gp2/ami-id"
_DEEP_LEARNING = (
    "/aws/service/deeplearning/ami/{}/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
)
_CANONICAL_WORD = {"x86_64": "amd64", "arm64": "arm64"}
_AT_ONCE = 10


def parameter_for(image: str | None, machine: MachineType) -> str | None:
    """The parameter that names the image, or None when the file names it itself. A machine with
    GPUs gets the image that has their drivers."""
    if image == LATEST_DLAMI or (not image and machine.has_nvidia):
        return _DEEP_LEARNING.format(machine.architecture)
    if not image:
        return _UBUNTU.format(_CANONICAL_WORD[machine.architecture])
    return None


async def look_up(aws: Aws, parameters: Collection[str]) -> dict[str, str]:
    """The image ids behind parameters."""
    wanted = sorted(set(parameters))
    found: dict[str, str] = {}
    for at in range(0, len(wanted), _AT_ONCE):
        answer = await aws.call("ssm", "get_parameters", Names=wanted[at : at + _AT_ONCE])
        found.update({one["Name"]: one["Value"] for one in answer["Parameters"]})
    missing = [name for name in wanted if name not in found]
    if missing:
        raise ConfigError(
            f"there is no default image in {aws.region}",
            why=f"AWS knows no parameter {missing[0]} there",
            fix="name an image that the region has: node_config: {ImageId: ami-...}",
        )
    return found
