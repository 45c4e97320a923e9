"""Whether AWS would let us do what `up` is about to do: the same calls, as nearly as they will be
made, but dry. Nothing is made."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from shoal.errors import DeniedError, ShoalError
from shoal.events import Role
from shoal.parallel import side_by_side
from shoal.providers.aws import foundation, identity, launch, tags
from shoal.providers.aws.calls import Aws
from shoal.providers.aws.foundation import Site
from shoal.providers.aws.launch import Ground
from shoal.providers.aws.offers import offers
from shoal.spec.model import ClusterSpec

_DRY = "DryRunOperation"
_NAME = "shoal-rehearsal"
_PUBLIC_KEY = b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdD7y3aLq454yWBdwLWbieU1ebz9/cu7/QEXn9OIeZJ"


async def denied(aws: Aws, spec: ClusterSpec, wanted: Iterable[str]) -> list[str]:
    """The names of the calls that AWS refuses to us, of those that are needed for machines of the
    wanted node types."""
    sites: dict[str, Site] = {}

    async def survey(name: str) -> None:
        try:
            sites.update(await foundation.survey(aws, spec, [name]))
        except ShoalError:
            return  # what is wrong with it is told elsewhere

    await side_by_side(survey(name) for name in wanted)
    group = {"GroupName": _NAME, "Description": "rehearsal"}
    key = {"KeyName": _NAME, "PublicKeyMaterial": _PUBLIC_KEY}
    names = await side_by_side(
        [
            *(_refused(aws, "run_instances", request) for request in _launches(spec, sites)),
            _refused(aws, "create_security_group", group),
            _refused(aws, "import_key_pair", key),
            _refused_identity(aws, spec, sites),
        ]
    )
    return list(dict.fromkeys(name for name in names if name))


def _launches(spec: ClusterSpec, sites: dict[str, Site]) -> list[dict[str, Any]]:
    """What RunInstances is going to be asked for each kind, but for what is not made yet. The
    image, the place and the tags matter: by them AWS judges whether it is allowed."""
    found: dict[str, dict[str, Any]] = {}
    for name, site in sites.items():
        role: Role = "head" if name == spec.head_node_type else "worker"
        market = launch.market(site.config)
        offer = offers(site.instance_types, market, site.subnets, on_demand_too=False)[0]
        request = launch.request(
            site.config,
            offer,
            Ground(None, {}, None),
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


async def _refused(aws: Aws, operation: str, request: dict[str, Any]) -> str:
    """The name of the call, if it is not allowed. Any other refusal is of what was made up here,
    or is told elsewhere."""
    try:
        await aws.call("ec2", operation, ignoring=(_DRY,), DryRun=True, **request)
    except DeniedError:
        return "".join(word.title() for word in operation.split("_"))
    except ShoalError:
        pass
    return ""


async def _refused_identity(aws: Aws, spec: ClusterSpec, sites: dict[str, Site]) -> str:
    """The same for the identity that a new head has. IAM knows no dry runs: who may not even look
    for the profile could not make it."""
    head = sites.get(spec.head_node_type)
    if head is None or head.config.get("IamInstanceProfile"):
        return ""
    name = identity.profile_name(spec.cluster_name, aws.region)
    try:
        await aws.call(
            "iam", "get_instance_profile", ignoring=("NoSuchEntity",), InstanceProfileName=name
        )
    except DeniedError:
        return "" if await _has_head(aws, spec.cluster_name) else "GetInstanceProfile"
    except ShoalError:
        pass
    return ""


async def _has_head(aws: Aws, cluster: str) -> bool:
    """Whether somebody who may has made the head already."""
    alive = ["pending", "running", "stopping", "stopped"]
    filters = [
        *tags.of_cluster(cluster),
        {"Name": f"tag:{tags.RAY_KIND}", "Values": ["head"]},
        {"Name": "instance-state-name", "Values": alive},
    ]
    return bool(await aws.pages("ec2", "describe_instances", "Reservations", Filters=filters))
