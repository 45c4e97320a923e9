"""Which permissions a call needs, by AWS's reference of actions, resources and condition keys, and
whether its caller has them.

Callers may do everything, unless a test limits their access key, or instances to what the policies
of their roles say.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from tests.simcloud.calls import ApiError, Call
from tests.simcloud.iam_evaluation import Need, Values, is_allowed

ACCOUNT = "123456789012"
ADMINISTRATOR = (
    '{"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "*", "Resource": "*"}}'
)
"""The policy of a role that may do everything."""

Inventory = Mapping[str, list[dict[str, Any]]]
Context = dict[str, Values]

# Everyone may make these.
_FREE = ("sts:GetCallerIdentity",)
# The ARNs of these have no account.
_SHARED = ("image", "snapshot")
_KINDS = {
    "InstanceId": "instance",
    "GroupId": "security-group",
    "KeyName": "key-pair",
    "ImageId": "image",
    "SnapshotId": "snapshot",
    "VolumeId": "volume",
}
_ON_ONE = {
    "DeleteSecurityGroup": "GroupId",
    "AuthorizeSecurityGroupIngress": "GroupId",
    "RevokeSecurityGroupIngress": "GroupId",
    "ImportKeyPair": "KeyName",
    "DeleteKeyPair": "KeyName",
    "DeregisterImage": "ImageId",
    "DeleteSnapshot": "SnapshotId",
    "DeleteVolume": "VolumeId",
}
_ON_INSTANCES = ("TerminateInstances", "StopInstances", "StartInstances", "RebootInstances")
_PREFIXES = {
    "i": "instance",
    "vol": "volume",
    "ami": "image",
    "snap": "snapshot",
    "sg": "security-group",
}
_EC2 = "ec2.amazonaws.com"


class Permissions:
    """The policies of an account's callers."""

    def __init__(self) -> None:
        self.limits: dict[str, list[str]] = {}
        """By access key, the policy documents of callers who may not do everything."""
        self.limits_roles = False
        """Whether instances may do only what the policies of their roles say."""

    def refuse(
        self, call: Call, body: bytes, inventory: Inventory, role: str | None
    ) -> ApiError | None:
        """The error for a call that its caller, of this role if it is an instance, may not make."""
        boundary: list[str] = []
        if role is not None:
            record = next((r for r in inventory["roles"] if r["id"] == role), None)
            documents = record["policies"] if record else []
            boundary = record["boundary"] if record else []
        elif call.access_key in self.limits:
            documents = self.limits[call.access_key]
        else:
            return None
        for need in needs(call, body, inventory):
            if need.action not in _FREE and not is_allowed(documents, boundary, need):
                return _denial(call, need)
        return None


def _denial(call: Call, need: Need) -> ApiError:
    message = f"not authorized to perform: {need.action} on resource: {need.resource}"
    if call.service == "ec2":
        return ApiError("UnauthorizedOperation", f"You are {message}", 403)
    code = "AccessDenied" if call.service in ("iam", "sts") else "AccessDeniedException"
    return ApiError(code, f"User is {message}", 400 if code.endswith("Exception") else 403)


def needs(call: Call, body: bytes, inventory: Inventory) -> Iterator[Need]:
    """What a call is authorized for."""
    if call.service == "ec2":
        yield from _Ec2Needs(call, inventory).all()
    elif call.service == "iam":
        yield from _iam_needs(call, inventory)
    elif call.service == "elasticfilesystem":
        yield Need("elasticfilesystem:DescribeFileSystems")
    elif call.service == "ssm":
        names = json.loads(body).get("Names") or [json.loads(body).get("Name", "")]
        for name in names:
            yield Need(f"ssm:{call.action}", f"arn:aws:ssm:{call.region}::parameter{name}")
    elif call.service != "s3":
        yield Need(f"{call.service}:{call.action}")


class _Ec2Needs:
    def __init__(self, call: Call, inventory: Inventory) -> None:
        self._call, self._params = call, call.params
        self._tags = {
            record["id"]: record["tags"]
            for kind in ("instances", "images", "snapshots", "volumes", "groups")
            for record in inventory[kind]
        }
        self._inventory = inventory

    def all(self) -> Iterator[Need]:
        action = self._call.action
        if action == "RunInstances":
            yield from self._launch()
        elif action == "CreateImage":
            yield self._need("instance", self._params["InstanceId"])
            yield self._need("image", "*", created=True)
            yield self._need("snapshot", "*", created=True)
        elif action == "CreateSecurityGroup":
            yield self._need("security-group", "*", created=True)
            yield self._need("vpc", self._params.get("VpcId", "*"))
        elif action == "CreateTags":
            yield from self._tag_existing()
        elif action in _ON_INSTANCES:
            for id in self._listed("InstanceId"):
                yield self._need("instance", id)
        elif action in _ON_ONE:
            name = _ON_ONE[action]
            yield self._need(_KINDS[name], self._params.get(name, "*"), created=True)
        else:
            yield Need(f"ec2:{action}")
        for kind in self._request_tags():
            context = {**self._context(kind, created=True), "ec2:CreateAction": [action]}
            yield Need("ec2:CreateTags", self._arn(kind, "*"), context)

    def _launch(self) -> Iterator[Need]:
        params = self._params
        for kind in ("instance", "volume", "network-interface"):
            yield self._need(kind, "*", created=True)
        used = {
            "image": [params.get("ImageId", "")],
            "subnet": [*self._listed("SubnetId"), *self._ending("NetworkInterface.", "SubnetId")],
            "security-group": [
                *self._listed("SecurityGroupId"),
                *(v for k, v in params.items() if ".SecurityGroupId." in k),
            ],
            "key-pair": self._listed("KeyName"),
            "snapshot": self._ending("BlockDeviceMapping.", "SnapshotId"),
            "placement-group": self._listed("Placement.GroupName"),
            "launch-template": self._ending("LaunchTemplate.", "LaunchTemplateId"),
            "capacity-reservation": self._ending("CapacityReservation", "CapacityReservationId"),
        }
        if params.get("InstanceMarketOptions.MarketType") == "spot":
            used["spot-instances-request"] = ["*"]
        for kind, ids in used.items():
            for id in filter(None, ids):
                yield self._need(kind, id, created=kind == "spot-instances-request")
        profile = params.get("IamInstanceProfile.Name") or params.get("IamInstanceProfile.Arn", "")
        for record in self._inventory["profiles"]:
            if profile.rpartition("/")[2] == record["id"]:
                for role in record["roles"]:
                    yield _pass_role(role, self._inventory)

    def _tag_existing(self) -> Iterator[Need]:
        keys, values = self._ending("Tag.", "Key"), self._ending("Tag.", "Value")
        tags = {f"aws:RequestTag/{k}": [v] for k, v in zip(keys, values, strict=True)}
        for id in self._listed("ResourceId"):
            kind = _PREFIXES[id.partition("-")[0]]
            context = {**self._context(kind, id=id), **tags, "aws:TagKeys": keys}
            yield Need("ec2:CreateTags", self._arn(kind, id), context)

    def _need(self, kind: str, id: str, *, created: bool = False) -> Need:
        context = self._context(kind, id=id, created=created)
        return Need(f"ec2:{self._call.action}", self._arn(kind, id), context)

    def _context(self, kind: str, *, id: str = "", created: bool = False) -> Context:
        context: Context = {f"aws:ResourceTag/{k}": [v] for k, v in self._tags.get(id, {}).items()}
        if created:
            tags = self._request_tags().get(kind, {})
            context.update({f"aws:RequestTag/{k}": [v] for k, v in tags.items()})
            context["aws:TagKeys"] = list(tags)
        return context

    def _request_tags(self) -> dict[str, dict[str, str]]:
        """The tags in the request, by the type of the resources that get them."""
        found: dict[str, dict[str, str]] = defaultdict(dict)
        for name, kind in self._params.items():
            prefix, _, rest = name.rpartition(".")
            if prefix.startswith("TagSpecification.") and rest == "ResourceType":
                for number in range(1, 51):
                    if key := self._params.get(f"{prefix}.Tag.{number}.Key"):
                        value = self._params.get(f"{prefix}.Tag.{number}.Value", "")
                        found[kind][key] = value
        return found

    def _arn(self, kind: str, id: str) -> str:
        account = "" if kind in _SHARED else ACCOUNT
        return f"arn:aws:ec2:{self._call.region}:{account}:{kind}/{id}"

    def _listed(self, name: str) -> list[str]:
        return [v for k, v in self._params.items() if k == name or k.startswith(f"{name}.")]

    def _ending(self, start: str, end: str) -> list[str]:
        return [v for k, v in self._params.items() if k.startswith(start) and k.endswith(end)]


def _iam_needs(call: Call, inventory: Inventory) -> Iterator[Need]:
    params, action = call.params, f"iam:{call.action}"
    role, profile = params.get("RoleName", ""), params.get("InstanceProfileName", "")
    has_tags = any(name.startswith("Tags.") for name in params)
    # IAM knows the path of what exists; a name alone has none.
    role_arn = _arn_of("roles", role, inventory) or _iam_arn("role", params.get("Path", "/"), role)
    if call.action == "CreateServiceLinkedRole":
        service = params["AWSServiceName"]
        arn = _iam_arn("role", f"/aws-service-role/{service}/", "AWSServiceRoleForEC2Spot")
        yield Need(action, arn, {"iam:AWSServiceName": [service]})
    elif profile:
        path = params.get("Path", "/")
        arn = _arn_of("profiles", profile, inventory) or _iam_arn("instance-profile", path, profile)
        yield Need(action, arn)
        if call.action == "CreateInstanceProfile" and has_tags:
            yield Need("iam:TagInstanceProfile", arn)
        if call.action == "AddRoleToInstanceProfile":
            yield _pass_role(role, inventory)
    elif role:
        boundary = params.get("PermissionsBoundary") or next(
            (r["boundary_arn"] for r in inventory["roles"] if r["id"] == role), None
        )
        context: Context = {"iam:PermissionsBoundary": [boundary]} if boundary else {}
        yield Need(action, role_arn, context)
        if call.action == "CreateRole" and has_tags:
            yield Need("iam:TagRole", role_arn)
    else:
        yield Need(action)


def _pass_role(role: str, inventory: Inventory) -> Need:
    arn = _arn_of("roles", role, inventory) or _iam_arn("role", "/", role)
    return Need("iam:PassRole", arn, {"iam:PassedToService": [_EC2]})


def _arn_of(kind: str, name: str, inventory: Inventory) -> str | None:
    return next((str(record["arn"]) for record in inventory[kind] if record["id"] == name), None)


def _iam_arn(kind: str, path: str, name: str) -> str:
    return f"arn:aws:iam::{ACCOUNT}:{kind}{path}{name}"
