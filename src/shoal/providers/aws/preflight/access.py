"""Preflight checks of access: to the instances, by key pairs and security groups, and to the
account, by permissions. Pure: records in, findings out.

An error stops `up`, so there is one only where login is impossible. Where login may work in a way
that is not visible here (an agent's key, a prefix list), the finding is a warning.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from shoal.core.errors import ConfigError
from shoal.providers.aws import (
    cluster_resources,
    iam_roles,
    launch_config,
    launch_request,
    security_group,
)
from shoal.providers.aws.preflight.checks import NodeTypeCheck
from shoal.providers.model import Finding
from shoal.spec.cluster_spec import ClusterSpec

_SSH_PORT = 22
_PREFIX_LIST = "the rule uses a prefix list, whose entries Shoal does not read"
_UNREACHABLE = "this machine could not connect to the instances"
_REMOVE_KEY_NAME = "remove KeyName to have a key pair created"

SshAccess = Literal["allowed", "denied", "unknown"]


def check_key_pair(
    node_type: NodeTypeCheck,
    pairs: Mapping[str, str],
    keys: Sequence[str],
    *,
    certain: bool = True,
) -> list[Finding]:
    """Whether the key pair that the file names exists, and its private key is available. `pairs`
    are public keys by pair name, empty where AWS does not report them; `keys` are the public keys
    we may log in with, not `certain` if ssh chooses and may know others."""
    name = str(node_type.config.get("KeyName") or "")
    at = node_type.at("KeyName")
    if name and name not in pairs:
        what, why = f"there is no key pair {name}", "the region does not have it"
        return [Finding("error", what, why, _REMOVE_KEY_NAME, at)]
    is_unknown = not certain and not _key_body(pairs.get(name, ""))
    if not name or is_unknown or any(_is_same_key(pairs[name], key) for key in keys):
        return []
    set_key = f"auth: {{ssh_private_key: ~/.ssh/{name}.pem}}"
    if not certain:
        what = f"the private key of key pair {name} may be missing on this machine"
        why = "no key in ~/.ssh matches it; an SSH agent may have it"
        return [Finding("warning", what, why, f"{set_key}, or {_REMOVE_KEY_NAME}", at)]
    return [
        Finding(
            "error",
            f"the private key of key pair {name} is missing on this machine",
            why="without it nodes cannot be logged in to",
            fix=f"{_REMOVE_KEY_NAME}, or name the file that has it: {set_key}",
            at=at,
        )
    ]


def check_instance_profile(node_type: NodeTypeCheck, missing: Collection[str]) -> list[Finding]:
    """Whether the instance profile that the file names exists."""
    name = iam_roles.profile_name(node_type.config)
    if name not in missing:
        return []
    return [
        Finding(
            "error",
            f"there is no instance profile {name}",
            why="IAM does not have it; a role needs an instance profile to be used by an instance",
            fix="remove IamInstanceProfile, or create it: aws iam create-instance-profile "
            f"--instance-profile-name {name}",
            at=node_type.at("IamInstanceProfile"),
        )
    ]


def check_head_role(spec: ClusterSpec, missing: Collection[str]) -> list[Finding]:
    """Whether the role that the file gives its head has an instance profile."""
    name = iam_roles.name_of(cluster_resources.head_role(spec))
    if not name or name not in missing:
        return []
    return [
        Finding(
            "error",
            f"there is no instance profile {name}",
            why="head_role names the instance profile of an existing role",
            fix="remove head_role, or create the instance profile and add the role to it",
            at=("provider", "settings", "head_role"),
        )
    ]


def _is_same_key(pair: str, key: str) -> bool:
    """Whether two public keys are equal. An unknown one counts as equal."""
    bodies = _key_body(pair), _key_body(key)
    return [] in bodies or bodies[0] == bodies[1]


def _key_body(public: str) -> list[str]:
    return public.split()[1:2]


def has_public_address(
    node_type: NodeTypeCheck,
    spec: ClusterSpec,
    subnets: Sequence[Mapping[str, Any]],
    group_vpcs: Mapping[str, str],
) -> bool:
    """Whether instances of a node type get public addresses, to which this machine connects. The
    others are reached through the head or a private network, where our public address does not
    matter."""
    try:
        usable = launch_config.subnets_for(spec, node_type.config, subnets, group_vpcs)
    except ConfigError:
        return True  # the subnet check reports this
    return launch_config.gets_public_address(node_type.config, usable, subnets)


def check_security_groups(
    node_type: NodeTypeCheck, groups: Mapping[str, Mapping[str, Any]], caller: Sequence[str]
) -> list[Finding]:
    """Whether the security groups that the file names allow SSH from us. `caller` is our address
    range, if known."""
    ids = launch_request.security_group_ids(node_type.config)
    at = node_type.at("SecurityGroupIds")
    missing = [id for id in ids if id not in groups]
    if missing:
        return [
            Finding(
                "error",
                f"there is no security group {', '.join(missing)}",
                why="the region does not have it",
                fix="remove SecurityGroupIds to have one created",
                at=at,
            )
        ]
    rules = [rule for id in ids for rule in groups[id].get("IpPermissions", ())]
    if not ids or not caller or (ssh_access := _ssh_access(rules, caller)) == "allowed":
        return []
    fix = f"aws ec2 authorize-security-group-ingress --group-id {ids[0]} "
    fix += f"--protocol tcp --port {_SSH_PORT} --cidr {caller[0]}"
    if ssh_access == "unknown":
        what = f"{', '.join(ids)} may not allow SSH from {', '.join(caller)}"
        return [Finding("warning", what, _PREFIX_LIST, fix, at)]
    return [
        Finding(
            "error",
            f"no security group of {', '.join(ids)} allows SSH from {', '.join(caller)}",
            why=_UNREACHABLE,
            fix=fix,
            at=at,
        )
    ]


def check_created_rules(spec: ClusterSpec, caller: Sequence[str]) -> list[Finding]:
    """Whether the rules of the security group that is created for the cluster would lock us out."""
    settings = spec.provider.settings.get("security_group") or {}
    is_derived = not spec.shoal.ssh_from and not security_group.has_ssh_rules(settings)
    if spec.auth.ssh_proxy_command and not spec.auth.ssh_proxy_use_node_id and is_derived:
        what = "ssh_proxy_command hides from which address SSH reaches the instances"
        why = "the security group that is created allows SSH from inside the VPC only"
        fix = "if the proxy is outside the VPC: shoal: {ssh_from: [198.51.100.7/32]}"
        return [Finding("warning", what, why, fix, at=("auth", "ssh_proxy_command"))]
    if not caller:
        return []
    at: tuple[str, ...]
    own_rules = (spec.provider.settings.get("security_group") or {}).get("IpPermissions") or ()
    ssh_access: SshAccess = "denied"
    if any(map(security_group.covers_ssh, own_rules)):
        ssh_access = _ssh_access(own_rules, caller)
        if ssh_access == "allowed":
            return []
        rule = f"{{IpProtocol: tcp, FromPort: {_SSH_PORT}, ToPort: {_SSH_PORT}, "
        rule += f"IpRanges: [{{CidrIp: {caller[0]}}}]}}"
        fix, at = f"add to IpPermissions: {rule}", ("provider", "settings", "security_group")
        setting = "provider.security_group"
    elif spec.shoal.ssh_from and not _covers(spec.shoal.ssh_from, caller):
        ranges = ", ".join((*spec.shoal.ssh_from, caller[0]))
        fix, at = f"shoal: {{ssh_from: [{ranges}]}}", ("shoal", "ssh_from")
        setting = "shoal.ssh_from"
    else:
        return []
    if ssh_access == "unknown":
        what = f"{setting} may not allow SSH from {', '.join(caller)}"
        return [Finding("warning", what, _PREFIX_LIST, fix, at)]
    what = f"{setting} does not allow SSH from {', '.join(caller)}"
    return [Finding("error", what, _UNREACHABLE, fix, at)]


def _ssh_access(rules: Sequence[Mapping[str, Any]], caller: Sequence[str]) -> SshAccess:
    """Whether rules allow SSH from us. Rules with a source group do not count: they match private
    addresses only."""
    ssh_rules = [rule for rule in rules if security_group.covers_ssh(rule)]
    ranges = [
        cidr
        for rule in ssh_rules
        for cidr in (
            *(r["CidrIp"] for r in rule.get("IpRanges") or ()),
            *(r["CidrIpv6"] for r in rule.get("Ipv6Ranges") or ()),
        )
    ]
    if _covers(ranges, caller):
        return "allowed"
    return "unknown" if any(rule.get("PrefixListIds") for rule in ssh_rules) else "denied"


def _covers(ranges: Sequence[str], caller: Sequence[str]) -> bool:
    networks = [ipaddress.ip_network(cidr, strict=False) for cidr in ranges]
    callers = [ipaddress.ip_network(cidr, strict=False) for cidr in caller]
    return any(
        network.version == address.version and address.subnet_of(network)  # type: ignore[arg-type]
        for network in networks
        for address in callers
    )


def check_permissions(denied: Sequence[str], caller: str) -> list[Finding]:
    """The calls that were `denied` in a dry run. `caller` is our ARN, if known."""
    if not denied:
        return []
    fix = f"shoal iam-policy > shoal-policy.json\n{_grant(caller)}, or have an administrator of "
    fix += "the account run it"
    if any(call.endswith("InstanceProfile") for call in denied):
        fix += "\nor use an existing role for the head: provider: {head_role: NAME}"
    what, why = f"you may not call {', '.join(denied)}", f"AWS denied {caller or 'you'} a dry run"
    return [Finding("error", what, why, fix)]


def _grant(caller: str) -> str:
    principal, _, name = caller.rpartition(":")[2].partition("/")
    policy = "--policy-name shoal --policy-document file://shoal-policy.json"
    if principal == "assumed-role":
        return f"aws iam put-role-policy --role-name {name.partition('/')[0]} {policy}"
    # A policy of the user's own may have only 2,048 characters.
    parts = caller.split(":")
    partition, account = (parts[1], parts[4]) if len(parts) > 5 else ("aws", "ACCOUNT")
    arn = f"arn:{partition}:iam::{account}:policy/shoal"
    user = name.rpartition("/")[2] or "NAME"
    return (
        f"aws iam create-policy {policy}\n"
        f"aws iam attach-user-policy --user-name {user} --policy-arn {arn}"
    )
