"""Whether we would get in: into the account, by its permissions, and into the machines, by key
pairs and security groups. Pure: records in, findings out.

An error stops `up`, so it is one only where nobody could get in. Where a way may lead in that
cannot be seen from here (an agent's key, a prefix list), it is a warning.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from shoal.core.errors import ConfigError
from shoal.providers.aws import key_pairs, launch_config, launch_request, network
from shoal.providers.aws.preflight.checks import NodeTypeCheck
from shoal.providers.model import Finding
from shoal.spec.cluster_spec import ClusterSpec

_SSH = 22
_PREFIX_LIST = "what is in the prefix list that it names is not known here"

Door = Literal["open", "closed", "unknown"]


def of_private_key(spec: ClusterSpec) -> list[Finding]:
    """Whether the key that the file names is there."""
    key = spec.auth.ssh_private_key
    if key is None or key_pairs.private_key(spec.auth).is_file():
        return []
    return [
        Finding(
            "error",
            f"the key {key} does not exist",
            why="auth.ssh_private_key names it",
            fix="take ssh_private_key out to have a key made, or correct the path",
            at=("auth", "ssh_private_key"),
        )
    ]


def of_key_pair(
    kind: NodeTypeCheck, pairs: Mapping[str, str], keys: Sequence[str], *, certain: bool = True
) -> list[Finding]:
    """Whether the key pair that the file names is there, and opens to us. `pairs` are public
    halves by name, empty where AWS does not tell; `keys` are those of the keys we may log in
    with, and not `certain` if ssh has to find one and may know others."""
    name = str(kind.config.get("KeyName") or "")
    at = kind.at("KeyName")
    if name and name not in pairs:
        what, why = f"there is no key pair {name}", "the region does not have it"
        return [Finding("error", what, why, "take KeyName out to have a key made", at)]
    unseen = not certain and not _body(pairs.get(name, ""))
    if not name or unseen or any(_same(pairs[name], key) for key in keys):
        return []
    made, named = (
        "take KeyName out to have a key made",
        f"auth: {{ssh_private_key: ~/.ssh/{name}.pem}}",
    )
    if not certain:
        what = f"the private half of the key pair {name} may not be here"
        why = "it is not that of a key in ~/.ssh; ssh may be lent it by an agent"
        return [Finding("warning", what, why, f"{named}, or {made}", at)]
    return [
        Finding(
            "error",
            f"the private half of the key pair {name} is not here",
            why="without it nobody gets in to the machines",
            fix=f"{made}, or name the file that has it: {named}",
            at=at,
        )
    ]


def _same(theirs: str, own: str) -> bool:
    """Whether a pair's public half is ours. One that cannot be seen is taken to be."""
    bodies = _body(theirs), _body(own)
    return [] in bodies or bodies[0] == bodies[1]


def _body(public: str) -> list[str]:
    return public.split()[1:2]


def is_met_directly(
    kind: NodeTypeCheck, spec: ClusterSpec, known: Sequence[Mapping[str, Any]]
) -> bool:
    """Whether a kind's machines have addresses out here, at which we would log in. To others the
    way leads through the head or a network of one's own, where our address says nothing."""
    interfaces: Sequence[Mapping[str, Any]] = kind.config.get("NetworkInterfaces") or ({},)
    asked = interfaces[0].get("AssociatePublicIpAddress")
    if asked is not None:
        return bool(asked)
    try:
        chosen = {subnet.id for subnet in launch_config.subnets_for(spec, kind.config, known)}
    except ConfigError:
        return True  # as where the subnets are put right, which is told of them
    return any(one.get("MapPublicIpOnLaunch") for one in known if one["SubnetId"] in chosen)


def of_groups(
    kind: NodeTypeCheck, groups: Mapping[str, Mapping[str, Any]], caller: Sequence[str]
) -> list[Finding]:
    """Whether the security groups that the file names let us in. `caller` is the address range
    from which we come, if it is known."""
    named = launch_request.own_groups(kind.config)
    at = kind.at("SecurityGroupIds")
    missing = [name for name in named if name not in groups]
    if missing:
        return [
            Finding(
                "error",
                f"there is no security group {', '.join(missing)}",
                why="the region does not have it",
                fix="take SecurityGroupIds out to have one made",
                at=at,
            )
        ]
    rules = [rule for name in named for rule in groups[name].get("IpPermissions", ())]
    if not named or not caller or (door := _door(rules, caller)) == "open":
        return []
    fix = f"aws ec2 authorize-security-group-ingress --group-id {named[0]} "
    fix += f"--protocol tcp --port {_SSH} --cidr {caller[0]}"
    if door == "unknown":
        what = f"{', '.join(named)} may not let SSH in from {', '.join(caller)}"
        return [Finding("warning", what, _PREFIX_LIST, fix, at)]
    return [
        Finding(
            "error",
            f"no security group of {', '.join(named)} lets SSH in from {', '.join(caller)}",
            why="the machines could not be reached from here",
            fix=fix,
            at=at,
        )
    ]


def of_rules(spec: ClusterSpec, caller: Sequence[str]) -> list[Finding]:
    """Whether the rules for the group that is made for the cluster would lock us out."""
    if not caller:
        return []
    at: tuple[str, ...]
    own = (spec.provider.settings.get("security_group") or {}).get("IpPermissions") or ()
    door: Door = "closed"
    if any(map(network.covers_ssh, own)):
        door = _door(own, caller)
        if door == "open":
            return []
        rule = f"{{IpProtocol: tcp, FromPort: {_SSH}, ToPort: {_SSH}, "
        rule += f"IpRanges: [{{CidrIp: {caller[0]}}}]}}"
        fix, at = f"add to IpPermissions: {rule}", ("provider", "settings", "security_group")
        said = "provider.security_group"
    elif spec.shoal.ssh_from and not _covers(spec.shoal.ssh_from, caller):
        ranges = ", ".join((*spec.shoal.ssh_from, caller[0]))
        fix, at = f"shoal: {{ssh_from: [{ranges}]}}", ("shoal", "ssh_from")
        said = "shoal.ssh_from"
    else:
        return []
    if door == "unknown":
        what = f"{said} may not let SSH in from {', '.join(caller)}"
        return [Finding("warning", what, _PREFIX_LIST, fix, at)]
    what = f"{said} does not let SSH in from {', '.join(caller)}"
    return [Finding("error", what, "the machines could not be reached from here", fix, at)]


def _door(rules: Sequence[Mapping[str, Any]], caller: Sequence[str]) -> Door:
    """Whether rules let SSH in from where we are. A rule for another group does not count: at a
    public address nobody comes from a group."""
    doors = [rule for rule in rules if network.covers_ssh(rule)]
    ranges = [
        text
        for rule in doors
        for text in (
            *(r["CidrIp"] for r in rule.get("IpRanges") or ()),
            *(r["CidrIpv6"] for r in rule.get("Ipv6Ranges") or ()),
        )
    ]
    if _covers(ranges, caller):
        return "open"
    return "unknown" if any(rule.get("PrefixListIds") for rule in doors) else "closed"


def _covers(ranges: Sequence[str], caller: Sequence[str]) -> bool:
    nets = [ipaddress.ip_network(text, strict=False) for text in ranges]
    here = [ipaddress.ip_network(text, strict=False) for text in caller]
    return any(
        net.version == we.version and we.subnet_of(net)  # type: ignore[arg-type]
        for net in nets
        for we in here
    )


def of_permissions(denied: Sequence[str], caller: str) -> list[Finding]:
    """What a dry run was refused. `caller` is the ARN of who asked."""
    if not denied:
        return []
    return [
        Finding(
            "error",
            f"you may not call {', '.join(denied)}",
            why=f"AWS refused {caller or 'you'} a dry run",
            fix=f"shoal iam-policy > shoal-policy.json\n{_grant(caller)}, or have that run by "
            "whoever administers the account",
        )
    ]


def _grant(caller: str) -> str:
    kind, _, name = caller.rpartition(":")[2].partition("/")
    policy = "--policy-name shoal --policy-document file://shoal-policy.json"
    if kind == "assumed-role":
        return f"aws iam put-role-policy --role-name {name.partition('/')[0]} {policy}"
    return f"aws iam put-user-policy --user-name {name.rpartition('/')[2] or 'NAME'} {policy}"
