"""Builds the arguments of RunInstances from a `node_config`. Pure.

`node_config` uses boto3's own names and is passed unchanged, except for the fields that Ray added
to it, and for secure defaults where the file does not set a value.
"""

from __future__ import annotations

import base64
import copy
import gzip
import hashlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shoal.core.errors import ConfigError
from shoal.providers.aws import ebs, tags
from shoal.providers.vm.launch_options import LaunchOption, Market

DEFAULT_TYPE = "m5.large"
_SUBNETS = "SubnetIds"
_MAX_TAG_LENGTH = 256
_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True)
class LaunchResources:
    """The resources that an instance is launched with: the name of its key pair, the security
    groups by VPC, and the instance profiles of the head and of the workers."""

    key_name: str | None
    security_groups: Mapping[str, tuple[str, ...]]
    profile: str | None
    worker_profile: str | None = None

    @property
    def worker_resources(self) -> LaunchResources:
        """The same resources with the workers' instance profile."""
        return replace(self, profile=self.worker_profile)


def merge_template(config: Mapping[str, Any], template: Mapping[str, Any]) -> dict[str, Any]:
    """A `node_config` merged with the launch template it names. Fields of the file win."""
    merged = {**copy.deepcopy(dict(template)), **copy.deepcopy(dict(config))}
    merged.pop("LaunchTemplate", None)
    if "UserData" in template and "UserData" not in config:
        # Templates hold encoded user data, and boto3 encodes its argument.
        merged["UserData"] = _decode_user_data(template["UserData"], config["LaunchTemplate"])
    return merged


def _decode_user_data(encoded: str, template: Mapping[str, Any]) -> str:
    """The user data of a template as text, so that Shoal's can be added. Some tools compress it,
    which cloud-init accepts."""
    data = base64.b64decode(encoded)
    try:
        return (gzip.decompress(data) if data.startswith(_GZIP_MAGIC) else data).decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        name = template.get("LaunchTemplateName") or template.get("LaunchTemplateId")
        raise ConfigError(
            f"the user data of launch template {name} is not text",
            why=f"Shoal adds the instance's host key to it and could not read it: {error}",
            fix="set it as text in the file: node_config: {UserData: ...}",
        ) from None


def instance_type(config: Mapping[str, Any]) -> str:
    return str(config.get("InstanceType") or DEFAULT_TYPE)


def market(config: Mapping[str, Any]) -> Market:
    options = config.get("InstanceMarketOptions") or {}
    return "spot" if options.get("MarketType") == "spot" else "on-demand"


def subnet_ids(config: Mapping[str, Any]) -> list[str]:
    """The subnets that the file names, in its order."""
    subnet = config.get("SubnetId") or first_interface(config).get("SubnetId")
    return [subnet] if subnet else list(config.get(_SUBNETS) or ())


def security_group_ids(config: Mapping[str, Any]) -> list[str]:
    """The security groups that the file names."""
    return list(config.get("SecurityGroupIds") or first_interface(config).get("Groups") or ())


def first_interface(config: Mapping[str, Any]) -> Mapping[str, Any]:
    interfaces = config.get("NetworkInterfaces") or ()
    return interfaces[0] if interfaces else {}


def check_interfaces(config: Mapping[str, Any]) -> None:
    """Raise `ConfigError` if the network interfaces that the file describes contradict its subnets
    or are incomplete. The first one gets a subnet and groups if it has none."""
    interfaces: Sequence[Mapping[str, Any]] = config.get("NetworkInterfaces") or ()
    named = [config["SubnetId"]] if config.get("SubnetId") else list(config.get(_SUBNETS) or ())
    subnet = first_interface(config).get("SubnetId")
    if subnet and named and subnet not in named:
        raise ConfigError(
            f"NetworkInterfaces names {subnet}, but SubnetIds names {', '.join(named)}",
            why="an instance is launched in one subnet",
            fix="remove SubnetIds",
        )
    for number, interface in enumerate(interfaces[1:], start=2):
        if not (interface.get("SubnetId") or interface.get("NetworkInterfaceId")):
            raise ConfigError(
                f"network interface {number} of node_config has no subnet",
                why="AWS needs one for every interface that the file describes",
                fix="add a SubnetId to each of NetworkInterfaces",
            )


def placement_zone(config: Mapping[str, Any]) -> str | None:
    zone = (config.get("Placement") or {}).get("AvailabilityZone")
    return str(zone) if zone else None


def client_token(token: str, option: LaunchOption) -> str:
    """The ClientToken that makes a repeated call idempotent. Another option is another request and
    needs another token, also in another subnet of the same zone."""
    return hashlib.sha256(f"{token}/{option}/{option.subnet.id}".encode()).hexdigest()[:48]


def build_request(
    config: Mapping[str, Any],
    option: LaunchOption,
    resources: LaunchResources,
    *,
    labels: Mapping[str, str],
    image: str,
    user_data: str | bytes,
    count: int,
    token: str,
    root_volume: Mapping[str, Any] | None = None,
    own_tags: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The arguments of RunInstances for up to `count` instances tagged with `labels`.
    `root_volume` is the mapping of the root volume if the file configures none."""
    request = copy.deepcopy(dict(config))
    for key in (_SUBNETS, "SubnetId", "KeyName", "MinCount", "MaxCount"):
        request.pop(key, None)
    request["InstanceType"] = option.instance_type
    request["ImageId"] = image
    request["ClientToken"] = token
    request["MinCount"], request["MaxCount"] = 1, count
    if option.market == "on-demand" and market(config) == "spot":
        # The fallback from spot. Other markets, such as capacity blocks, are passed unchanged.
        request.pop("InstanceMarketOptions", None)
    if key_name := config.get("KeyName") or resources.key_name:
        request["KeyName"] = key_name
    if user_data:
        request["UserData"] = user_data
    if resources.profile is not None:
        key = "Arn" if resources.profile.startswith("arn:") else "Name"
        request.setdefault("IamInstanceProfile", {key: resources.profile})
    # An instance that shuts itself down when its lease expires must not keep costing money.
    request.setdefault("InstanceInitiatedShutdownBehavior", "terminate")
    # Session tokens keep server-side request forgery from reading the role's credentials; two
    # hops, since a container is one hop further away.
    request["MetadataOptions"] = {
        "HttpTokens": "required",
        "HttpPutResponseHopLimit": 2,
        **(request.get("MetadataOptions") or {}),
    }
    mappings = [
        *(request.get("BlockDeviceMappings") or ()),
        *([root_volume] if root_volume else []),
    ]
    request["BlockDeviceMappings"] = _volumes(mappings)
    if not request["BlockDeviceMappings"]:
        del request["BlockDeviceMappings"]
    groups = security_group_ids(config) or resources.security_groups.get(option.subnet.vpc, ())
    _set_network(request, option, groups)
    volume_tags = _retention_tags(request.get("BlockDeviceMappings") or ())
    if volumes := ebs.new_volumes(request.get("BlockDeviceMappings") or ()):
        labels = {**labels, tags.VOLUMES: ebs.describe_volumes(volumes)[:_MAX_TAG_LENGTH]}
    request["TagSpecifications"] = _tag_specifications(
        request.get("TagSpecifications") or (), labels, volume_tags, own_tags or {}
    )
    return request


def _set_network(request: dict[str, Any], option: LaunchOption, groups: Sequence[str]) -> None:
    """Set subnet and security groups: on the first network interface if the file describes one,
    since EC2 rejects them in both places."""
    interfaces = request.get("NetworkInterfaces")
    if not interfaces:
        request["SubnetId"] = option.subnet.id
        if groups:
            request["SecurityGroupIds"] = list(groups)
        return
    request.pop("SecurityGroupIds", None)
    interfaces[0].setdefault("DeviceIndex", 0)
    interfaces[0].setdefault("SubnetId", option.subnet.id)
    if groups:
        interfaces[0].setdefault("Groups", list(groups))


def _volumes(mappings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Volumes that are deleted with their instance, unless the file says otherwise."""
    volumes = []
    for mapping in mappings:
        volume = copy.deepcopy(dict(mapping))
        if isinstance(volume.get("Ebs"), dict):
            volume["Ebs"].setdefault("DeleteOnTermination", True)
        volumes.append(volume)
    return volumes


def _retention_tags(mappings: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The tags of volumes of which the file keeps some. All volumes of a launch get the same tags;
    those that are not kept are deleted with their instance."""
    ebs = (mapping.get("Ebs") or {} for mapping in mappings)
    is_retained = any(volume.get("DeleteOnTermination") is False for volume in ebs)
    return {tags.RETAINED: "yes"} if is_retained else {}


def _tag_specifications(
    specifications: Sequence[Mapping[str, Any]],
    labels: Mapping[str, str],
    volume_tags: Mapping[str, str],
    own_tags: Mapping[str, str],
) -> list[dict[str, Any]]:
    """The tags of the file, overridden by Shoal's, by which the instance is found again. `own_tags`
    are those that the file gives to everything."""
    merged = {"instance": dict(own_tags), "volume": dict(own_tags)}
    for entry in specifications:
        resource_type = str(entry["ResourceType"])
        merged[resource_type] = {
            **merged.get(resource_type, {}),
            **tags.as_dict(entry.get("Tags")),
        }
    name = merged["instance"].get("Name")
    merged["instance"] = {**merged["instance"], **labels, **({"Name": name} if name else {})}
    merged["volume"] = {
        **merged["volume"],
        **tags.cluster_tags(labels[tags.CLUSTER]),
        **volume_tags,
    }
    return [
        {"ResourceType": resource_type, "Tags": tags.as_list(resource_tags)}
        for resource_type, resource_tags in merged.items()
    ]
