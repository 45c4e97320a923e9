"""moto's server in its own process, patched to behave more like EC2.

Run by `moto_pool.py`. moto keeps the records: ids, tags, filters, groups, keys, roles. The patches
make launches and terminations take time, assign public addresses, and refuse what EC2 refuses and
moto does not. The endpoint (`ec2.py`) reads records and sets states through the paths below
`/simcloud/`, which no AWS client uses.
"""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import os
import random
import signal
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.ec2.exceptions import (
    DependencyViolationError,
    EC2ClientError,
    InvalidKeyPairNameError,
)
from moto.ec2.models import ec2_backends, elastic_network_interfaces
from moto.ec2.models.availability_zones_and_regions import RegionsAndZonesBackend, Zone
from moto.ec2.models.instances import Instance, InstanceBackend, InstanceState, StateReason
from moto.ec2.models.security_groups import SecurityGroupBackend
from moto.ec2.models.subnets import SubnetBackend
from moto.ec2.models.vpcs import VPCBackend
from moto.ec2.utils import filter_dict_attribute_mapping
from moto.iam.exceptions import NotFoundException
from moto.iam.models import IAMBackend, iam_backends
from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from moto.ssm.models import ssm_backends
from werkzeug.serving import run_simple
from werkzeug.test import Client

from tests.simcloud import aws_images, ec2_refusals, kernel

_CODES = {
    "pending": 0,
    "running": 16,
    "shutting-down": 32,
    "terminated": 48,
    "stopping": 64,
    "stopped": 80,
}
_REGION = "us-west-2"
LOCAL_ZONE = "us-west-2-lax-1a"
_RESOLVE_SSM = "resolve:ssm:"
_TERMINAL_STATES = ("shutting-down", "terminated")

_public_addresses = (f"203.0.113.{last}" for last in itertools.cycle(range(1, 255)))


def _set_state(instance: Instance, state: str) -> None:
    instance._state = InstanceState(state, _CODES[state])


def patch_moto() -> None:
    """Make state changes wait for the simulated hosts, and add missing checks of EC2."""
    create, start, stop, terminate = (
        Instance.__init__,
        Instance.start,
        Instance.stop,
        Instance.terminate,
    )
    run = InstanceBackend.run_instances
    remove_role = IAMBackend.remove_role_from_instance_profile
    delete_group = SecurityGroupBackend._delete_security_group
    default_vpc = VPCBackend.create_default_vpc
    default_subnet = SubnetBackend.create_default_subnet
    filter_dict_attribute_mapping["client-token"] = "client_token"
    RegionsAndZonesBackend.zones[_REGION].append(
        Zone(LOCAL_ZONE, _REGION, "usw2-lax1-az1", "local-zone")
    )

    def create_pending(self: Instance, *args: Any, **kwargs: Any) -> None:
        create(self, *args, **kwargs)
        _set_state(self, "pending")

    def start_slowly(self: Instance) -> InstanceState:
        before = start(self)
        _set_state(self, "running" if before.name == "running" else "pending")
        return before

    def stop_slowly(self: Instance) -> InstanceState:
        before = stop(self)
        _set_state(self, "stopped" if before.name == "stopped" else "stopping")
        return before

    def terminate_slowly(self: Instance) -> InstanceState:
        if self.state in _TERMINAL_STATES:
            return InstanceState(self.state, self.state_code)
        before = terminate(self)
        _set_state(self, "shutting-down")
        return before

    def reboot(self: Instance) -> None:
        """Keep the state: EC2 reports `running` throughout a reboot."""

    def run_in_a_subnet(self: Any, image_id: str, count: int, *args: Any, **kwargs: Any) -> Any:
        key = kwargs.get("key_name")
        if key and key not in self.key_pairs:
            raise InvalidKeyPairNameError(key)
        if image_id.startswith(_RESOLVE_SSM):
            name = image_id.removeprefix(_RESOLVE_SSM)
            parameter = ssm_backends[self.account_id][self.region_name].get_parameter(name)
            image_id = parameter.value
        ami = self.amis.get(image_id)
        if ami is not None and ami.state != "available":
            raise EC2ClientError(
                "InvalidAMIID.Unavailable", f"The image ID '[{image_id}]' is no longer available"
            )
        if not kwargs.get("subnet_id") and not kwargs.get("nics"):
            subnets = self.get_default_subnets()
            zone = kwargs.get("placement") or min(subnets)
            kwargs["subnet_id"] = subnets[zone].id
            kwargs["associate_public_ip"] = kwargs.get("associate_public_ip") or None
        return run(self, image_id, count, *args, **kwargs)

    def create_public_default_vpc(self: Any) -> Any:
        """The default VPC has a route to the internet."""
        vpc = default_vpc(self)
        gateway = self.create_internet_gateway()
        self.attach_internet_gateway(gateway.id, vpc.id)
        (table,) = self.describe_route_tables(
            filters={"vpc-id": vpc.id, "association.main": "true"}
        )
        self.create_route(table.id, "0.0.0.0/0", gateway_id=gateway.id)
        return vpc

    def create_regular_default_subnet(self: Any, availability_zone: str) -> Any:
        """EC2 creates default subnets in availability zones only."""
        if availability_zone != LOCAL_ZONE:
            return default_subnet(self, availability_zone)
        return None

    def delete_unused_group(self: Any, vpc_id: str | None, group_id: str) -> None:
        for instance in self.all_instances():
            if instance.state != "terminated" and group_id in _groups_of(instance):
                raise DependencyViolationError(f"resource {group_id} has a dependent object")
        delete_group(self, vpc_id, group_id)

    def remove_existing_role(self: Any, profile_name: str, role_name: str) -> None:
        names = [role.name for role in self.get_instance_profile(profile_name).roles]
        if role_name not in names:
            raise NotFoundException(f"{role_name} is not in {profile_name}")
        remove_role(self, profile_name, role_name)

    replacements: list[tuple[type, str, Any]] = [
        (Instance, "__init__", create_pending),
        (Instance, "start", start_slowly),
        (Instance, "stop", stop_slowly),
        (Instance, "terminate", terminate_slowly),
        (Instance, "reboot", reboot),
        (InstanceBackend, "run_instances", run_in_a_subnet),
        (VPCBackend, "create_default_vpc", create_public_default_vpc),
        (SubnetBackend, "create_default_subnet", create_regular_default_subnet),
        (SecurityGroupBackend, "_delete_security_group", delete_unused_group),
        (IAMBackend, "remove_role_from_instance_profile", remove_existing_role),
    ]
    for owner, name, replacement in replacements:
        setattr(owner, name, replacement)
    aws_images.apply()
    ec2_refusals.apply()
    setattr(elastic_network_interfaces, "random_public_ip", lambda: next(_public_addresses))  # noqa: B010


def _groups_of(instance: Any) -> list[str]:
    return sorted({group.id for nic in instance.nics.values() for group in nic.group_set})


def _instance(region: str, instance: Any) -> dict[str, Any]:
    profile = instance.ec2_backend.iam_instance_profile_associations.get(instance.id)
    return {
        "id": instance.id,
        "region": region,
        "zone": instance.placement.zone,
        "type": instance.instance_type,
        "image": instance.image_id,
        "state": instance.state,
        "market": "spot" if instance.lifecycle == "spot" else "on-demand",
        "vpc": instance.vpc_id,
        "private": instance.private_ip,
        "public": instance.public_ip,
        "mac": instance.nics[0].mac_address,
        "groups": _groups_of(instance),
        "key": instance.key_name,
        "user_data": _user_data(instance),
        "at_shutdown": str(instance.instance_initiated_shutdown_behavior),
        "http_tokens": instance.metadata_options.http_tokens,
        "http_endpoint": instance.metadata_options.http_endpoint,
        "profile": profile.iam_instance_profile.name if profile else None,
        "tags": _tags(instance),
        "token": instance.client_token,
    }


def _user_data(instance: Any) -> str:
    """The user data as cloud-init reads it."""
    data = base64.b64decode(str(instance.user_data or ""))
    return (gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data).decode()


def _rule(rule: Any) -> dict[str, Any]:
    return {
        "protocol": rule.ip_protocol,
        "from": rule.from_port,
        "to": rule.to_port,
        "cidr": rule.ip_range.get("CidrIp"),
        "group": rule.source_group.get("GroupId"),
    }


def inventory() -> dict[str, Any]:
    """Return the records that hosts, the firewall and the leak check need."""
    records: dict[str, list[dict[str, Any]]] = {
        name: []
        for name in (
            "instances", "groups", "keys", "volumes", "images", "snapshots", "addresses", "subnets",
        )
    }  # fmt: skip
    for region, backend in list(ec2_backends[DEFAULT_ACCOUNT_ID].items()):
        records["instances"] += [
            _instance(region, instance) for instance in backend.all_instances()
        ]
        records["groups"] += [
            {
                "id": group.id,
                "name": group.name,
                "tags": _tags(group),
                "ingress": [*map(_rule, group.ingress_rules)],
            }
            for group in backend.describe_security_groups()
        ]
        records["keys"] += [
            {"id": key.id, "name": name, "region": region, "public": key.public_key}
            for name, key in backend.key_pairs.items()
        ]
        records["volumes"] += [
            {"id": id, "tags": _tags(volume)} for id, volume in backend.volumes.items()
        ]
        # Only those that were made from instances.
        records["images"] += [
            {"id": id, "tags": _tags(ami)} for id, ami in backend.amis.items() if ami.instance_id
        ]
        records["snapshots"] += [
            {"id": id, "tags": _tags(snapshot)}
            for id, snapshot in backend.snapshots.items()
            if str(snapshot.description).startswith("Created by CreateImage(")
        ]
        records["addresses"] += [{"id": address.public_ip} for address in backend.addresses]
        records["subnets"] += [
            {"id": subnet.id, "zone": subnet.availability_zone}
            for subnet in backend.describe_subnets()
        ]
    iam = iam_backends[DEFAULT_ACCOUNT_ID]["aws"]
    profiles = [
        {
            "id": profile.name,
            "arn": profile.arn,
            "roles": [role.name for role in profile.roles],
        }
        for profile in iam.instance_profiles.values()
    ]
    # Service-linked roles belong to the account and stay.
    own = [role for role in iam.roles.values() if not role.path.startswith("/aws-service-role/")]
    roles = [_role(iam, role) for role in own]
    return {**records, "profiles": profiles, "roles": roles}


def _role(iam: Any, role: Any) -> dict[str, Any]:
    attached = [_document(policy) for policy in role.managed_policies.values()]
    boundary = iam.managed_policies.get(role.permissions_boundary_arn)
    return {
        "id": role.name,
        "arn": role.arn,
        "policies": [*role.policies.values(), *attached],
        "boundary_arn": role.permissions_boundary_arn,
        "boundary": [_document(boundary)] if boundary else [],
    }


def _document(policy: Any) -> str:
    return next(str(v.document) for v in policy.versions if v.is_default)


def _tags(resource: Any) -> dict[str, str]:
    return {tag["key"]: tag["value"] for tag in resource.get_tags()}


def set_state(request: dict[str, Any]) -> dict[str, Any]:
    """Record a new state of an instance."""
    backend = ec2_backends[DEFAULT_ACCOUNT_ID][request["region"]]
    instance = backend.get_instance(request["id"])
    state = request["state"]
    if state == "shutting-down":
        instance.terminate()
    elif state == "stopping":
        instance.stop()
    elif not (instance.state in _TERMINAL_STATES and state != "terminated"):
        _set_state(instance, state)
    if state == "terminated":
        ec2_refusals.drop_tags(backend, instance.id)
        for nic in list(instance.nics.values()):
            if nic.id in backend.enis:
                nic.delete()
    if request.get("reason"):
        code, message = request["reason"]
        instance.state_reason = StateReason(f"{code}: {message}", code)
    return {"state": instance.state}


_CHANGES = {
    "set_state": set_state,
    "set_image_state": aws_images.set_image_state,
    "hide_snapshot": aws_images.hide_snapshot,
    "begin_snapshot": aws_images.begin_snapshot,
}


class Backend:
    """The WSGI application: the paths of the simulated cloud, and moto for all others."""

    def __init__(self) -> None:
        self._moto = DomainDispatcherApplication(create_backend_app)

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if not path.startswith("/simcloud/"):
            return self._moto(environ, start_response)  # type: ignore[no-any-return]
        try:
            if path == "/simcloud/inventory":
                response = inventory()
            else:
                size = int(environ.get("CONTENT_LENGTH") or 0)
                request = json.loads(environ["wsgi.input"].read(size))
                response = _CHANGES[path.rpartition("/")[2]](request)
        except Exception:  # the test prints it; this process continues
            start_response("500 Internal Server Error", [("Content-Type", "text/plain")])
            return [traceback.format_exc().encode()]
        start_response("200 OK", [("Content-Type", "application/json")])
        return [json.dumps(response).encode()]


def warm_up(backend: Backend) -> None:
    """Do the work of moto's first request before forking."""
    client = Client(backend)
    for service, action in (("ec2", "DescribeVpcs"), ("iam", "ListRoles"), ("sts", "")):
        scope = f"AWS4-HMAC-SHA256 Credential=warm/20200101/{_REGION}/{service}/aws4_request"
        client.post("/", data={"Action": action}, headers={"Authorization": scope})


def serve(backend: Backend, server: int, network: str, port: int) -> NoReturn:
    """Run the moto of one cloud, in its network namespace, until the cloud or the fork server
    exits."""
    kernel.die_with_parent(server)
    with Path(network).open() as namespace:
        kernel.setns(namespace.fileno(), kernel.CLONE_NEWNET)
    random.seed()
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    # One request at a time, so that calls take effect in order.
    run_simple("127.0.0.1", port, backend, request_handler=MotoRequestHandler)
    os._exit(0)


def main() -> None:
    """Fork a moto for every network named on standard input, and print its process id."""
    patch_moto()
    backend = Backend()
    warm_up(backend)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for the forks
    server = os.getpid()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            serve(backend, server, line.strip(), int(sys.argv[1]))
        print(pid, flush=True)


if __name__ == "__main__":
    main()
