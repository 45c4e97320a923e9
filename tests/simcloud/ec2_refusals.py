"""What EC2 refuses or hides and moto does not: patches of moto, applied by `aws_backend.py`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

from moto.ec2.exceptions import DependencyViolationError, EC2ClientError, InvalidAMIIdError
from moto.ec2.models.amis import AmiBackend
from moto.ec2.models.instances import InstanceBackend
from moto.ec2.models.security_groups import SecurityGroupBackend
from moto.ec2.responses._base_response import EC2BaseResponse
from moto.ec2.responses.amis import AmisResponse

# Public AMIs are deprecated two years after their release; this one was.
DEPRECATION_TIME = datetime(2022, 5, 1, tzinfo=timezone.utc)
_MAX_FILTER_VALUES = 200


def apply() -> None:
    """Patch moto."""
    _hide_deprecated_images()
    _require_every_image()
    _limit_filter_values()
    _refuse_groups_of_another_vpc()
    _keep_groups_that_rules_name()


def drop_tags(backend: Any, instance_id: str) -> None:
    """EC2 drops the tags of a terminated instance some time before its record."""
    backend.tags.pop(instance_id, None)


def _hide_deprecated_images() -> None:
    """Listings of images leave deprecated ones out, unless they are named or requested."""
    describe = AmisResponse.describe_images

    def describe_images(self: Any) -> Any:
        result = describe(self)
        if self._get_param("ImageIds") or self._get_bool_param("IncludeDeprecated"):
            return result
        images = result.result["Images"]
        shown = [image for image in images if not getattr(image, "deprecation_time", None)]
        return type(result)({"Images": shown})

    AmisResponse.describe_images = describe_images


def _require_every_image() -> None:
    """One unknown id fails the whole call; in moto only if all of them are unknown."""
    describe = AmiBackend.describe_images

    def describe_images(self: Any, ami_ids: Any = None, *args: Any, **kwargs: Any) -> Any:
        images = describe(self, ami_ids, *args, **kwargs)
        known = {image.id for image in images} | set(self.deleted_amis)
        if missing := sorted(set(ami_ids or ()) - known):
            raise InvalidAMIIdError(missing)
        return images

    AmiBackend.describe_images = describe_images


def _limit_filter_values() -> None:
    read = EC2BaseResponse._filters_from_querystring

    def filters_from_querystring(self: Any) -> Any:
        filters = read(self)
        if sum(map(len, filters.values())) > _MAX_FILTER_VALUES:
            raise EC2ClientError(
                "FilterLimitExceeded",
                f"The maximum number of filter values specified on a single call is "
                f"{_MAX_FILTER_VALUES}",
            )
        return filters

    EC2BaseResponse._filters_from_querystring = filters_from_querystring


def _refuse_groups_of_another_vpc() -> None:
    run = InstanceBackend.run_instances

    def run_instances(self: Any, image_id: str, count: int, *args: Any, **kwargs: Any) -> Any:
        interfaces: Sequence[Any] = kwargs.get("nics") or ()
        pairs = [
            (interface.get("SubnetId"), interface.get("Groups") or ()) for interface in interfaces
        ]
        pairs.append((kwargs.get("subnet_id"), kwargs.get("security_group_ids") or ()))
        for subnet_id, groups in pairs:
            network = self.get_subnet(subnet_id) if subnet_id else self.get_default_vpc()
            vpc = network.vpc_id if subnet_id else network.id
            for id in groups:
                group = self.get_security_group_from_id(id)
                if group is not None and group.vpc_id != vpc:
                    raise EC2ClientError(
                        "InvalidParameter",
                        f"Security group {id} and subnet {subnet_id} belong to different networks.",
                    )
        reservation = run(self, image_id, count, *args, **kwargs)
        for instance in reservation.instances:
            # moto says spot for every market.
            instance.lifecycle = kwargs.get("instance_market_options") or None
        return reservation

    InstanceBackend.run_instances = run_instances


def _keep_groups_that_rules_name() -> None:
    delete = SecurityGroupBackend._delete_security_group

    def delete_security_group(self: Any, vpc_id: str | None, group_id: str) -> None:
        for group in self.describe_security_groups():
            named = {rule.source_group.get("GroupId") for rule in group.ingress_rules}
            if group.id != group_id and group_id in named:
                raise DependencyViolationError(f"resource {group_id} has a dependent object")
        delete(self, vpc_id, group_id)

    SecurityGroupBackend._delete_security_group = delete_security_group
