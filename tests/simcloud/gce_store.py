"""What exists in the simulated project: virtual machines, disks, firewall rules, and what Google
offers in its zones. The records of machines have the form that `instances.py` reads."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from tests.simcloud.instances import Record
from tests.simcloud.ledger import Thing

PROJECT = "sim-project"
PROJECT_NUMBER = "1234567890"
API = "https://www.googleapis.com/compute/v1"
ZONES = {
    "us-west1": ("us-west1-a", "us-west1-b", "us-west1-c"),
    "us-central1": ("us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f"),
}
REGION_OF = {zone: region for region, zones in ZONES.items() for zone in zones}
# vCPUs, memory in MiB, GPUs.
MACHINE_TYPES = {
    "n1-standard-1": (1, 3840, 0),
    "n1-standard-2": (2, 7680, 0),
    "n1-standard-4": (4, 15360, 0),
    "n2-standard-2": (2, 8192, 0),
    "e2-standard-2": (2, 8192, 0),
    "a2-highgpu-1g": (12, 87040, 1),
    "g2-standard-4": (4, 16384, 1),
}
# Not every zone has every type.
_MISSING = {("us-west1-c", "a2-highgpu-1g"), ("us-west1-c", "n2-standard-2")}
FAMILIES = {
    ("deeplearning-platform-release", "common-cpu"): "common-cpu-v20261001",
    ("debian-cloud", "debian-12"): "debian-12-bookworm-v20261010",
    ("debian-cloud", "debian-12-arm64"): "debian-12-bookworm-arm64-v20261010",
    ("ubuntu-os-cloud", "ubuntu-2204-lts"): "ubuntu-2204-jammy-v20261001",
}

_STATUSES = {
    "pending": "STAGING",
    "running": "RUNNING",
    "stopping": "STOPPING",
    "stopped": "TERMINATED",  # Google's word for a machine that is off and still exists
    "shutting-down": "STOPPING",
}


def fingerprint(value: Any) -> str:
    """What a change must quote to show that it knows the current value."""
    digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest()
    return base64.b64encode(digest[:8]).decode()


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def metadata_of(resource: Mapping[str, Any]) -> dict[str, str]:
    items = (resource.get("metadata") or {}).get("items") or ()
    return {item["key"]: str(item.get("value", "")) for item in items}


def is_spot(resource: Mapping[str, Any]) -> bool:
    scheduling = resource.get("scheduling") or {}
    return bool(scheduling.get("preemptible") or scheduling.get("provisioningModel") == "SPOT")


def offers(zone: str, machine_type: str) -> bool:
    return machine_type in MACHINE_TYPES and (zone, machine_type) not in _MISSING


@dataclass
class Vm:
    """A virtual machine: Google's resource, and where it really stands."""

    id: str
    zone: str
    resource: dict[str, Any]
    private: str
    public: str | None
    state: str = "pending"
    accepted: bool = False
    """Whether the operation that creates it has got so far that there is a host."""
    born: float = field(default_factory=time.monotonic)
    created: float = field(default_factory=time.time)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def name(self) -> str:
        return str(self.resource["name"])

    @property
    def machine_type(self) -> str:
        return str(self.resource["machineType"]).rpartition("/")[2]

    @property
    def market(self) -> str:
        return "spot" if is_spot(self.resource) else "on-demand"

    @property
    def network(self) -> str:
        interface = self.resource["networkInterfaces"][0]
        return str(interface.get("network") or "default").rpartition("/")[2]

    @property
    def tags(self) -> list[str]:
        return list((self.resource.get("tags") or {}).get("items") or ())

    def shown(self) -> dict[str, Any]:
        """The resource as Google returns it."""
        resource = json.loads(json.dumps(self.resource))
        labels = resource.get("labels") or {}
        interface = resource["networkInterfaces"][0]
        interface["networkIP"] = self.private
        if self.public and self.state == "running":
            interface["accessConfigs"][0]["natIP"] = self.public
        resource["metadata"] = {
            **(resource.get("metadata") or {}),
            "fingerprint": fingerprint(metadata_of(resource)),
        }
        resource["tags"] = {"items": self.tags, "fingerprint": fingerprint(self.tags)}
        stamp = datetime.fromtimestamp(self.created, timezone.utc)
        return {
            **resource,
            "kind": "compute#instance",
            "id": self.id,
            "zone": f"{API}/projects/{PROJECT}/zones/{self.zone}",
            "machineType": f"{API}/projects/{PROJECT}/zones/{self.zone}/machineTypes/"
            f"{self.machine_type}",
            "selfLink": f"{API}/projects/{PROJECT}/zones/{self.zone}/instances/{self.name}",
            "status": _STATUSES[self.state] if self.accepted else "PROVISIONING",
            "creationTimestamp": stamp.isoformat(timespec="milliseconds"),
            "labelFingerprint": fingerprint(labels),
        }


class GceStore:
    """The resources of one project. Lives on the fabric's loop."""

    def __init__(self) -> None:
        self.vms: dict[tuple[str, str], Vm] = {}
        self.disks: dict[tuple[str, str], dict[str, Any]] = {}
        self.firewalls: dict[str, dict[str, Any]] = {}
        self.networks = {"default": {"name": "default", "autoCreateSubnetworks": True}}
        self.routers: dict[str, list[dict[str, Any]]] = {}
        """The routers of each region, with their NAT gateways."""
        self.instance_templates: dict[str, dict[str, Any]] = {}
        """The properties of instance templates, by name."""
        self.machine_images: dict[str, dict[str, Any]] = {}
        """The properties of machine images, by name."""
        self.project_metadata: dict[str, str] = {}
        self.constraints: set[str] = set()
        """Policies of the organisation that are enforced."""
        self._ids = itertools.count(7_000_000_000_000_000_001)
        self._addresses = itertools.count(2)

    def new_id(self) -> str:
        return str(next(self._ids))

    def add(self, zone: str, resource: dict[str, Any]) -> Vm:
        """Record a machine and its new disks. There is no host yet."""
        number = next(self._addresses)
        interface = resource["networkInterfaces"][0]
        vm = Vm(
            id=self.new_id(),
            zone=zone,
            resource=resource,
            private=f"10.138.{number // 250}.{number % 250 + 2}",
            public=f"203.0.113.{number % 254 + 1}" if interface.get("accessConfigs") else None,
        )
        for index, disk in enumerate(resource.get("disks") or ()):
            if "source" in disk:
                self.disks[zone, disk["source"].rpartition("/")[2]]["users"].append(vm.id)
                continue
            params = disk.get("initializeParams") or {}
            default = vm.name if disk.get("boot") else f"{vm.name}-{index}"
            name = str(params.get("diskName") or default)
            disk["source"] = f"{API}/projects/{PROJECT}/zones/{zone}/disks/{name}"
            disk["diskSizeGb"] = str(params.get("diskSizeGb") or 10)
            self.disks[zone, name] = {
                "name": name,
                "sizeGb": disk["diskSizeGb"],
                "labels": dict(params.get("labels") or {}),
                "zone": f"{API}/projects/{PROJECT}/zones/{zone}",
                "creationTimestamp": now(),
                "users": [vm.id],
                "autoDelete": bool(disk.get("autoDelete")),
            }
        self.vms[zone, vm.name] = vm
        return vm

    def add_default_rules(self) -> None:
        """The firewall rules that Google gives the default network of a project."""
        for name, sources, allowed in (
            ("default-allow-ssh", "0.0.0.0/0", {"IPProtocol": "tcp", "ports": ["22"]}),
            ("default-allow-internal", "10.128.0.0/9", {"IPProtocol": "all"}),
        ):
            self.firewalls[name] = {
                "name": name,
                "network": "global/networks/default",
                "direction": "INGRESS",
                "sourceRanges": [sources],
                "allowed": [allowed],
            }

    def add_disk(self, zone: str, name: str, **fields: Any) -> None:
        """A disk that the user has created."""
        self.disks[zone, name] = {
            "name": name,
            "sizeGb": "10",
            "labels": {},
            "zone": f"{API}/projects/{PROJECT}/zones/{zone}",
            "creationTimestamp": now(),
            "users": [],
            "autoDelete": False,
            **fields,
        }

    def remove(self, vm: Vm) -> None:
        """Forget a machine, and its disks unless they are kept."""
        self.vms.pop((vm.zone, vm.name), None)
        for key, disk in list(self.disks.items()):
            if vm.id in disk["users"]:
                disk["users"].remove(vm.id)
                if disk["autoDelete"]:
                    del self.disks[key]
        vm.changed.set()

    def by_id(self, id: str) -> Vm | None:
        return next((vm for vm in self.vms.values() if vm.id == id), None)

    def uses_oslogin(self, vm: Vm) -> bool:
        """Whether the guest ignores the SSH keys of the metadata."""
        own = metadata_of(vm.resource).get("enable-oslogin")
        value = self.project_metadata.get("enable-oslogin", "FALSE") if own is None else own
        is_required = "constraints/compute.requireOsLogin" in self.constraints
        return is_required or value.upper() == "TRUE"

    def login_keys(self, vm: Vm) -> list[tuple[str, str]]:
        """The users and public keys that the guest agent sets up."""
        if self.uses_oslogin(vm):
            return []
        own = metadata_of(vm.resource)
        lines = own.get("ssh-keys", "").splitlines()
        if own.get("block-project-ssh-keys", "").upper() != "TRUE":
            lines += self.project_metadata.get("ssh-keys", "").splitlines()
        pairs = (line.partition(":") for line in lines if line.strip())
        return [(user, key) for user, _, key in pairs]

    # -- as `instances.py` reads it ------------------------------------------------------------

    async def inventory(self) -> dict[str, list[Record]]:
        vms = [vm for vm in self.vms.values() if vm.accepted]
        return {
            "instances": [self._record(vm) for vm in vms],
            "keys": [],
            "groups": self._groups(),
        }

    def _record(self, vm: Vm) -> Record:
        return {
            "id": vm.id,
            "name": vm.name,
            "state": vm.state,
            "zone": vm.zone,
            "region": REGION_OF[vm.zone],
            "type": vm.machine_type,
            "market": vm.market,
            "private": vm.private,
            "public": vm.public,
            "key": "",
            "groups": [f"{vm.network}:{tag}" for tag in (*vm.tags, "*")],
            "at_shutdown": "stop",
        }

    def _groups(self) -> list[Record]:
        rules: dict[str, list[Record]] = {}
        for firewall in self.firewalls.values():
            if firewall.get("direction", "INGRESS") != "INGRESS" or firewall.get("disabled"):
                continue
            network = str(firewall["network"]).rpartition("/")[2]
            for tag in firewall.get("targetTags") or ("*",):
                rules.setdefault(f"{network}:{tag}", []).extend(_ingress(network, firewall))
        return [{"id": id, "ingress": ingress} for id, ingress in rules.items()]

    async def set_state(
        self, record: Record, state: str, reason: tuple[str, str] | None = None
    ) -> None:
        vm = self.by_id(record["id"])
        if vm is None:
            return
        if state == "terminated":
            self.remove(vm)
        else:
            vm.state = state
            vm.changed.set()

    def things(self) -> list[Thing]:
        """Everything that must not be left behind."""
        return [
            *(Thing("instance", vm.id, vm.name) for vm in self.vms.values()),
            *(Thing("disk", f"{zone}/{name}") for zone, name in self.disks),
            *(Thing("firewall", name) for name in self.firewalls),
        ]


def _ingress(network: str, firewall: Mapping[str, Any]) -> list[Record]:
    sources = [{"cidr": cidr, "group": None} for cidr in firewall.get("sourceRanges") or ()]
    sources += [
        {"cidr": None, "group": f"{network}:{tag}"} for tag in firewall.get("sourceTags") or ()
    ]
    rules = []
    for allowed in firewall.get("allowed") or ():
        protocol = allowed["IPProtocol"]
        protocol = "-1" if protocol == "all" else protocol
        for ports in allowed.get("ports") or ("0-65535",):
            first, _, last = str(ports).partition("-")
            rules += [
                {**source, "protocol": protocol, "from": int(first), "to": int(last or first)}
                for source in sources
            ]
    return rules
