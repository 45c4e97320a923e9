"""Dry runs of the calls that `up` is about to make, to learn whether AWS permits them. Creates
nothing."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shoal.core.concurrency import run_all
from shoal.core.errors import DeniedError, ShoalError
from shoal.core.logs import suppress_and_log
from shoal.core.node_phase import Role
from shoal.providers.aws import cluster_resources, iam_roles, launch_config, launch_request, tags
from shoal.providers.aws.aws_client import AwsClient
from shoal.providers.aws.launch_config import LaunchConfig
from shoal.providers.aws.launch_request import LaunchResources
from shoal.providers.model import Finding
from shoal.providers.vm.launch_options import launch_options
from shoal.spec.cluster_spec import ClusterSpec

_log = logging.getLogger(__name__)

_DRY_RUN_SUCCEEDED = "DryRunOperation"
# The error codes that a more permissive policy would fix.
_POLICY_CODES = ("UnauthorizedOperation", "AccessDenied")
_NAME = "shoal-dry-run"
_PUBLIC_KEY = b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdD7y3aLq454yWBdwLWbieU1ebz9/cu7/QEXn9OIeZJ"

# The name of a call, and the error that denied it.
_Result = tuple[str, "DeniedError | None"]


@dataclass(frozen=True)
class DryRunResult:
    """What AWS does not permit: calls denied for lack of permissions, by name, and findings that
    no policy would fix."""

    denied: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()


async def dry_run(aws: AwsClient, spec: ClusterSpec, node_types: Sequence[str]) -> DryRunResult:
    """Try the calls needed to launch these node types. Resources that the file names are not
    created, so no permission to create them is needed."""
    configs: dict[str, LaunchConfig] = {}

    async def resolve(name: str) -> None:
        # Other checks report what is wrong with it.
        with suppress_and_log(_log, f"resolve the launch of {name}", ShoalError):
            configs.update(await launch_config.resolve_launch_configs(aws, spec, [name]))

    await run_all(resolve(name) for name in node_types)
    node_configs = {
        name: configs[name].config if name in configs else spec.node_types[name].node_config
        for name in node_types
    }
    calls = [_dry_run_call(aws, "run_instances", request) for request in _launches(spec, configs)]
    if not all(map(launch_request.security_group_ids, node_configs.values())):
        group = {"GroupName": _NAME, "Description": "dry run"}
        calls.append(_dry_run_call(aws, "create_security_group", group))
    if not all(config.get("KeyName") for config in node_configs.values()):
        key = {"KeyName": _NAME, "PublicKeyMaterial": _PUBLIC_KEY}
        calls.append(_dry_run_call(aws, "import_key_pair", key))
    has_profile = node_configs.get(spec.head_node_type, {}).get("IamInstanceProfile")
    if not has_profile and not cluster_resources.head_role(spec):
        calls.append(_check_profile(aws, spec.cluster_name))
    results = await run_all(calls)
    return DryRunResult(
        tuple(dict.fromkeys(call for call, error in results if error and _is_policy(error))),
        tuple(
            Finding("error", error.what, error.why, error.fix)
            for _, error in results
            if error and not _is_policy(error)
        ),
    )


def _is_policy(error: DeniedError) -> bool:
    return any(code in error.why for code in _POLICY_CODES)


def _launches(spec: ClusterSpec, configs: dict[str, LaunchConfig]) -> list[dict[str, Any]]:
    """The RunInstances requests of these node types, without the resources that do not exist yet.
    AMI, subnet and tags are real, since policies may depend on them."""
    requests: dict[str, dict[str, Any]] = {}
    for name, config in configs.items():
        role: Role = "head" if name == spec.head_node_type else "worker"
        market = launch_request.market(config.config)
        options = launch_options(
            config.instance_types, market, config.subnets, on_demand_fallback=False
        )
        request = launch_request.build_request(
            config.config,
            options[0],
            LaunchResources(None, {}, None),
            labels=tags.instance_tags(spec.cluster_name, name, role, _NAME, _NAME),
            image=config.images[options[0].instance_type],
            user_data="",
            count=1,
            token=_NAME,
            root_volume=config.root_volumes.get(config.images[options[0].instance_type]),
            own_tags=spec.shoal.tags,
        )
        del request["ClientToken"]
        untagged = {key: value for key, value in request.items() if key != "TagSpecifications"}
        requests.setdefault(json.dumps(untagged, sort_keys=True, default=str), request)
    return list(requests.values())


async def _dry_run_call(aws: AwsClient, operation: str, request: dict[str, Any]) -> _Result:
    """Try a call. Only denials count: other errors come from the made-up arguments, or another
    check reports them."""
    call = "".join(word.title() for word in operation.split("_"))
    try:
        await aws.call("ec2", operation, ignore_codes=(_DRY_RUN_SUCCEEDED,), DryRun=True, **request)
    except DeniedError as error:
        return call, error
    except ShoalError as error:
        _log.debug("dry run of %s: ignored %s", call, error.why)
    return call, None


async def _check_profile(aws: AwsClient, cluster: str) -> _Result:
    """Whether the head's instance profile can be created. IAM has no dry run, but a caller who may
    not read the profile could not create it."""
    call, name = "GetInstanceProfile", iam_roles.head_profile_name(cluster, aws.region)
    try:
        await aws.call(
            "iam", "get_instance_profile", ignore_codes=("NoSuchEntity",), InstanceProfileName=name
        )
    except DeniedError as error:
        return call, None if await _has_head(aws, cluster) else error
    except ShoalError as error:
        _log.debug("check of %s: ignored %s", call, error.why)
    return call, None


async def _has_head(aws: AwsClient, cluster: str) -> bool:
    """Whether the head exists already, so that its profile need not be created."""
    existing = ["pending", "running", "stopping", "stopped"]
    filters = [
        *tags.cluster_filter(cluster),
        {"Name": f"tag:{tags.RAY_NODE_KIND}", "Values": ["head"]},
        {"Name": "instance-state-name", "Values": existing},
    ]
    return bool(await aws.paginate("ec2", "describe_instances", "Reservations", Filters=filters))
