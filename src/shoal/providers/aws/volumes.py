"""Disks: what they cost while their machine is switched off."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.providers.aws.calls import Aws

# US dollars a month for a GiB of general purpose volume, in most regions.
_GIB_MONTH = 0.08


async def still_cost(aws: Aws, instances: Sequence[str]) -> list[str]:
    """What goes on costing money of machines that are stopped, in words."""
    if not instances:
        return []
    attached = [{"Name": "attachment.instance-id", "Values": list(instances)}]
    found = await aws.pages("ec2", "describe_volumes", "Volumes", Filters=attached)
    size = sum(volume["Size"] for volume in found)
    if not size:
        return []
    return [
        f"{len(found)} volumes with {size} GiB in all: about ${size * _GIB_MONTH:.2f} a month "
        f"at ${_GIB_MONTH} a GiB"
    ]
