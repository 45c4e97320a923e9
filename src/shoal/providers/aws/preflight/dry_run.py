"""Whether AWS would let us do what `up` is about to do: the same calls, as nearly as they will be
made, but dry. Nothing is made."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shoal.core.concurrency import run_all
from shoal.core.errors import DeniedError, ShoalError
from shoal.core.node_phase import Role
from shoal.providers.aws import iam_roles, launch_config, launch_request, tags
from shoal.providers.aws.client import AwsClient
from shoal.providers.aws.launch_config import LaunchConfig
from shoal.providers.aws.launch_options import launch_options
from shoal.providers.aws.launch_request import LaunchResources
from shoal.providers.model import Finding
from shoal.spec.cluster_spec import ClusterSpec

_DRY = "DryRunOperation"
# By which AWS says that somebody has to be allowed more.
_POLICY = ("UnauthorizedOperation", "AccessDenied")
_NAME = "shoal-rehearsal"
_PUBLIC_KEY = b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdD7y3aLq454yWBdwLWbieU1ebz9/cu7/QEXn9OIeZJ"

_Verdict = tuple[str, "DeniedError | None"]


@dataclass(frozen=True)
class Refused:
    """What AWS would not let us do: calls that we may not make, by name, and what else it has
    against us, which no policy of ours would help."""

    denied: tuple[str, ...] = ()
    others: tuple[Finding, ...] = ()


async def dry_run(aws: AwsClient, spec: ClusterSpec, wanted: Sequence[str]) -> Refused:
    """Try all that is needed for machines of the wanted node types. What the file names itself is
    not made, so nobody needs to be allowed to."""
    sites: dict[str, LaunchConfig] = {}

    async def survey(name: str) -> None:
        try:
            sites.update(await launch_config.resolve_launch_configs(aws, spec, [name]))
        except ShoalError:
            return  # what is wrong with it is told elsewhere

    await run_all(survey(name) for name in wanted)
    configs = {
        name: sites[name].config if name in sites else spec.node_types[name].node_config
        for name in wanted
    }
    tries = [_dry(aws, "run_instances", request) for request in _launches(spec, sites)]
    if not all(map(launch_request.own_groups, configs.values())):
        group = {"GroupName": _NAME, "Description": "rehearsal"}
        tries.append(_dry(aws, "create_security_group", group))
    if not all(config.get("KeyName") for config in configs.values()):
        key = {"KeyName": _NAME, "PublicKeyMaterial": _PUBLIC_KEY}
        tries.append(_dry(aws, "import_key_pair", key))
    if not configs.get(spec.head_node_type, {}).get("IamInstanceProfile"):
        tries.append(_identity(aws, spec.cluster_name))
    errors = await run_all(tries)
    return Refused(
        tuple(dict.fromkeys(call for call, error in errors if error and _is_of_policy(error))),
        tuple(
            Finding("error", error.what, error.why, error.fix)
            for _, error in errors
            if error and not _is_of_policy(error)
        ),
    )


def _is_of_policy(error: DeniedError) -> bool:
    return any(code in error.why for code in _POLICY)


def _launches(spec: ClusterSpec, sites: dict[str, LaunchConfig]) -> list[dict[str, Any]]:
    """What RunInstances is going to be asked for each kind, but for what is not made yet. The
    image, the place and the tags matter: by them AWS judges whether it is allowed."""
    found: dict[str, dict[str, Any]] = {}
    for name, site in sites.items():
        role: Role = "head" if name == spec.head_node_type else "worker"
        market = launch_request.market(site.config)
        offer = launch_options(site.instance_types, market, site.subnets, on_demand_too=False)[0]
        request = launch_request.request(
            site.config,
            offer,
            LaunchResources(None, {}, None),
            labels=tags.instance_tags(spec.cluster_name, name, role, _NAME, _NAME),
            image=site.images[offer.instance_type],
            user_data="",
            count=1,
            token=_NAME,
        )
        del request["ClientToken"]
        alike = {key: value for key, value in request.items() if key != "TagSpecifications"}
        found.setdefault(json.dumps(alike, sort_keys=True, default=str), request)
    return list(found.values())


async def _dry(aws: AwsClient, operation: str, request: dict[str, Any]) -> _Verdict:
    """The name of a call, and why we may not make it. Any other refusal is of what was made up
    here, or is told elsewhere."""
    call = "".join(word.title() for word in operation.split("_"))
    try:
        await aws.call("ec2", operation, ignoring=(_DRY,), DryRun=True, **request)
    except DeniedError as error:
        return call, error
    except ShoalError:
        pass
    return call, None


async def _identity(aws: AwsClient, cluster: str) -> _Verdict:
    """The same for the identity that a new head has. IAM knows no dry runs: who may not even look
    for the profile could not make it."""
    call, name = "GetInstanceProfile", iam_roles.profile_name(cluster, aws.region)
    try:
        await aws.call(
            "iam", "get_instance_profile", ignoring=("NoSuchEntity",), InstanceProfileName=name
        )
    except DeniedError as error:
        return call, None if await _has_head(aws, cluster) else error
    except ShoalError:
        pass
    return call, None


async def _has_head(aws: AwsClient, cluster: str) -> bool:
    """Whether somebody who may has made the head already."""
    alive = ["pending", "running", "stopping", "stopped"]
    filters = [
        *tags.of_cluster(cluster),
        {"Name": f"tag:{tags.RAY_KIND}", "Values": ["head"]},
        {"Name": "instance-state-name", "Values": alive},
    ]
    return bool(await aws.pages("ec2", "describe_instances", "Reservations", Filters=filters))
