"""What RunInstances is asked, as data: a file's `node_config` with what it leaves out. Pure.

`node_config` is boto3's own vocabulary and passes as it stands, but for the few fields that Ray
added to it, and for what safety asks for where the file does not say otherwise.
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
from shoal.providers.aws import tags
from shoal.providers.aws.launch_options import LaunchOption, Market

DEFAULT_TYPE = "m5.large"
_SUBNETS = "SubnetIds"
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class LaunchResources:
    """What a machine stands on, made beforehand: the key that opens it, the security groups of
    its network by VPC, and the identities that a head and its workers have."""

    key_name: str | None
    groups: Mapping[str, tuple[str, ...]]
    profile: str | None
    workers_profile: str | None = None

    @property
    def for_workers(self) -> LaunchResources:
        """The same ground as a worker stands on it."""
        return replace(self, profile=self.workers_profile)


def with_template(config: Mapping[str, Any], template: Mapping[str, Any]) -> dict[str, Any]:
    """A `node_config` with the content of the launch template it names. What the file says wins,
    field by field."""
    merged = {**copy.deepcopy(dict(template)), **copy.deepcopy(dict(config))}
    merged.pop("LaunchTemplate", None)
    if "UserData" in template and "UserData" not in config:
        # A template holds it encoded; boto3 encodes what it is given.
        merged["UserData"] = _launch_data(template["UserData"], config["LaunchTemplate"])
    return merged


def _launch_data(encoded: str, template: Mapping[str, Any]) -> str:
    """What a template hands to a machine, as text that ours can be added to. Some tools compress
    it, and cloud-init takes both."""
    data = base64.b64decode(encoded)
    try:
        return (gzip.decompress(data) if data.startswith(_GZIP) else data).decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        name = template.get("LaunchTemplateName") or template.get("LaunchTemplateId")
        raise ConfigError(
            f"the launch data of the launch template {name} is no text",
            why=f"Shoal adds the machine's host key to it, and cannot read it: {error}",
            fix="give the text in the file: node_config: {UserData: ...}",
        ) from None


def instance_type(config: Mapping[str, Any]) -> str:
    return str(config.get("InstanceType") or DEFAULT_TYPE)


def market(config: Mapping[str, Any]) -> Market:
    options = config.get("InstanceMarketOptions") or {}
    return "spot" if options.get("MarketType") == "spot" else "on-demand"


def own_subnets(config: Mapping[str, Any]) -> list[str]:
    """The subnets that the file names, in its order."""
    one = config.get("SubnetId") or _first_interface(config).get("SubnetId")
    return [one] if one else list(config.get(_SUBNETS) or ())


def own_groups(config: Mapping[str, Any]) -> list[str]:
    """The security groups that the file names."""
    return list(config.get("SecurityGroupIds") or _first_interface(config).get("Groups") or ())


def _first_interface(config: Mapping[str, Any]) -> Mapping[str, Any]:
    interfaces = config.get("NetworkInterfaces") or ()
    return interfaces[0] if interfaces else {}


def own_zone(config: Mapping[str, Any]) -> str | None:
    zone = (config.get("Placement") or {}).get("AvailabilityZone")
    return str(zone) if zone else None


def client_token(token: str, offer: LaunchOption) -> str:
    """The token that makes asking for this offer twice the same as asking once. A launch that
    goes on to another offer asks for something else, so it needs another token, also for another
    subnet of the same zone."""
    return hashlib.sha256(f"{token}/{offer}/{offer.subnet.id}".encode()).hexdigest()[:48]


def request(
    config: Mapping[str, Any],
    offer: LaunchOption,
    ground: LaunchResources,
    *,
    labels: Mapping[str, str],
    image: str,
    user_data: str,
    count: int,
    token: str,
) -> dict[str, Any]:
    """The arguments of RunInstances for up to `count` machines."""
    asked = copy.deepcopy(dict(config))
    for key in (_SUBNETS, "SubnetId", "KeyName", "MinCount", "MaxCount"):
        asked.pop(key, None)
    asked["InstanceType"] = offer.instance_type
    asked["ImageId"] = image
    asked["ClientToken"] = token
    asked["MinCount"], asked["MaxCount"] = 1, count
    if offer.market == "on-demand":
        asked.pop("InstanceMarketOptions", None)
    if key_name := config.get("KeyName") or ground.key_name:
        asked["KeyName"] = key_name
    if user_data:
        asked["UserData"] = user_data
    if ground.profile is not None:
        asked.setdefault("IamInstanceProfile", {"Name": ground.profile})
    # A machine that shuts itself down because nobody needs it must not go on costing money.
    asked.setdefault("InstanceInitiatedShutdownBehavior", "terminate")
    # Without a session token no page that a program was tricked into fetching gives the role
    # away; two hops, since a container is one further away.
    asked["MetadataOptions"] = {
        "HttpTokens": "required",
        "HttpPutResponseHopLimit": 2,
        **(asked.get("MetadataOptions") or {}),
    }
    asked["BlockDeviceMappings"] = _volumes(asked.get("BlockDeviceMappings") or ())
    if not asked["BlockDeviceMappings"]:
        del asked["BlockDeviceMappings"]
    _place(asked, offer, own_groups(config) or ground.groups.get(offer.subnet.vpc, ()))
    keeps = _keeps(asked.get("BlockDeviceMappings") or ())
    asked["TagSpecifications"] = _tagged(asked.get("TagSpecifications") or (), labels, keeps)
    return asked


def _place(asked: dict[str, Any], offer: LaunchOption, groups: Sequence[str]) -> None:
    """Where the machine's network is: on its first interface when the file describes one, since
    EC2 does not take it in both places."""
    interfaces = asked.get("NetworkInterfaces")
    if not interfaces:
        asked["SubnetId"] = offer.subnet.id
        if groups:
            asked["SecurityGroupIds"] = list(groups)
        return
    asked.pop("SecurityGroupIds", None)
    interfaces[0].setdefault("DeviceIndex", 0)
    interfaces[0].setdefault("SubnetId", offer.subnet.id)
    if groups:
        interfaces[0].setdefault("Groups", list(groups))


def _volumes(mappings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Volumes that go with their machine, unless the file says that they stay."""
    volumes = []
    for mapping in mappings:
        volume = copy.deepcopy(dict(mapping))
        if isinstance(volume.get("Ebs"), dict):
            volume["Ebs"].setdefault("DeleteOnTermination", True)
        volumes.append(volume)
    return volumes


def _keeps(mappings: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What the volumes carry if the file wants to keep some of them. One launch gives all of its
    volumes the same tags, and those that are not kept go with their machine."""
    ebs = (mapping.get("Ebs") or {} for mapping in mappings)
    return {tags.KEEPS: "yes"} if any(e.get("DeleteOnTermination") is False for e in ebs) else {}


def _tagged(
    own: Sequence[Mapping[str, Any]], labels: Mapping[str, str], keeps: Mapping[str, str]
) -> list[dict[str, Any]]:
    """The file's own tags, and ours over them: by ours the machine is found again."""
    merged: dict[str, dict[str, str]] = {"instance": {}, "volume": {}}
    for one in own:
        kind = str(one["ResourceType"])
        merged[kind] = {**merged.get(kind, {}), **tags.as_dict(one.get("Tags"))}
    named = merged["instance"].get("Name")
    merged["instance"] = {**merged["instance"], **labels, **({"Name": named} if named else {})}
    merged["volume"] = {**merged["volume"], **tags.ownership(labels[tags.CLUSTER]), **keeps}
    return [{"ResourceType": kind, "Tags": tags.as_list(one)} for kind, one in merged.items()]
