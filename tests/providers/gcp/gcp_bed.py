"""A laptop with the real `shoal` and a Google Cloud project whose instances are simulated hosts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal import spec
from shoal.core.clock import SystemClock
from shoal.core.events import Event, LaunchAttempted
from shoal.providers import provider_for
from shoal.providers.model import Instance, LaunchRequest
from shoal.providers.protocol import Provider
from shoal.spec.cluster_spec import ClusterSpec
from tests.providers.local.ssh_bed import QUICK_START, SHOAL
from tests.simcloud.cloud import SimCloud
from tests.simcloud.console import Result
from tests.simcloud.gce_store import PROJECT
from tests.simcloud.hosts import Host

CLUSTER = "mine"
IMAGE = "projects/debian-cloud/global/images/family/debian-12"


def node_config(machine_type: str = "n1-standard-2", **settings: Any) -> dict[str, Any]:
    disk = {"boot": True, "initializeParams": {"diskSizeGb": 50, "sourceImage": IMAGE}}
    return {"machineType": machine_type, "disks": [disk], **settings}


def cluster_file(**settings: Any) -> dict[str, Any]:
    """A head and two workers, with a fake Ray."""
    return {
        "cluster_name": CLUSTER,
        "provider": {"type": "gcp", "region": "us-west1", "project_id": PROJECT},
        "auth": {"ssh_user": "ubuntu"},
        "max_workers": 2,
        "available_node_types": {
            "head": {"node_config": node_config(), "resources": {}},
            "worker": {
                "node_config": node_config(),
                "min_workers": 2,
                "max_workers": 2,
                "resources": {},
            },
        },
        "head_node_type": "head",
        "setup_commands": [],
        "head_setup_commands": [],
        **QUICK_START,
        **settings,
    }


@dataclass
class Bed:
    """A cloud, a laptop, and a cluster file on the laptop."""

    cloud: SimCloud
    laptop: Host
    settings: dict[str, Any] = field(default_factory=dict)

    async def write(self, **settings: Any) -> None:
        """Write the cluster file; later settings win."""
        self.settings.update(settings)
        text = json.dumps(cluster_file(**self.settings))
        (await self.laptop.run("cat > c.yaml", stdin=text)).require("writing the cluster file")

    async def shoal(self, command: str, *, home: str = "~/.shoal", timeout: float = 120) -> Result:
        return await self.laptop.run(f"SHOAL_HOME={home} {SHOAL} {command}", timeout=timeout)

    async def up(self, options: str = "", *, timeout: float = 120) -> list[dict[str, Any]]:
        """`shoal up` that must succeed; its events."""
        done = await self.shoal(f"up c.yaml --yes --json {options}", timeout=timeout)
        assert done.code == 0, done.stdout + done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    async def down(self, *, home: str = "~/.shoal") -> None:
        """`shoal down` that must succeed and leave nothing."""
        done = await self.shoal("down c.yaml --yes", home=home)
        assert done.code == 0, done.stdout + done.stderr
        await self.cloud.assert_nothing_left()


@dataclass
class Account:
    """The provider in the test's own process, for tests that need no login to an instance;
    `directory` is the disk of the laptop."""

    cloud: SimCloud
    directory: Path
    settings: dict[str, Any] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)

    def file(self, **settings: Any) -> None:
        """Change settings of the cluster file."""
        self.settings.update(settings)

    def worker(self, **settings: Any) -> None:
        """Change the worker's node type, of which `node_config` is the most."""
        types = cluster_file(**self.settings)["available_node_types"]
        types["worker"] = {**types["worker"], **settings}
        self.file(available_node_types=types)

    @property
    def spec(self) -> ClusterSpec:
        file = self.directory / "c.yaml"
        file.write_text(json.dumps(cluster_file(**self.settings)))
        return spec.load(str(file)).launchable()

    def provider(self, home: str = "home", *, on_head: bool = False) -> Provider:
        """The provider of a new program, on a laptop or head with the local state in `home`."""
        path = self.directory / home
        return provider_for(self.spec, path, SystemClock(), self.events.append, on_head=on_head)

    async def launch(self, token: str = "t", workers: int = 2) -> list[Instance]:
        """Launch a head and workers, as `up` does."""
        requests = [LaunchRequest("head", "head", 1, f"{token}-h")]
        requests.append(LaunchRequest("worker", "worker", workers, f"{token}-w"))
        return list(await self.provider().launch(self.spec, requests))

    async def down(self, home: str = "another-home") -> None:
        """Terminate everything, as `down` on another laptop, and check that nothing is left."""
        provider = self.provider(home)
        cluster = self.spec.cluster_name
        await provider.terminate(self.spec, await provider.list_instances(cluster))
        await provider.release(self.spec)
        await self.cloud.assert_nothing_left()

    def attempts(self, node_type: str) -> list[tuple[str, str, str, int]]:
        """The launch attempts of a node type: machine type, market, zone and number launched."""
        return [
            (e.instance_type, e.market, e.zone, e.launched)
            for e in self.events
            if isinstance(e, LaunchAttempted) and e.node_type == node_type
        ]


def roles(instances: Sequence[Instance]) -> Mapping[str, list[Instance]]:
    """Instances by role."""
    return {role: [i for i in instances if i.role == role] for role in ("head", "worker")}


HEAD_PERMISSIONS = (
    "compute.disks.create",
    "compute.firewalls.list",
    "compute.images.useReadOnly",
    "compute.instances.create",
    "compute.instances.delete",
    "compute.instances.get",
    "compute.instances.getGuestAttributes",
    "compute.instances.getSerialPortOutput",
    "compute.instances.list",
    "compute.instances.setLabels",
    "compute.instances.setMetadata",
    "compute.instances.setTags",
    "compute.instances.start",
    "compute.instances.stop",
    "compute.regions.get",
    "compute.subnetworks.use",
    "compute.subnetworks.useExternalIp",
    "compute.zones.get",
)


def give_account(cloud: SimCloud, name: str = "given") -> str:
    """A service account that an administrator has created, with what a head needs; its email."""
    iam = cloud.gce.iam
    email = f"{name}@{PROJECT}.iam.gserviceaccount.com"
    iam.accounts[email] = {"email": email, "projectId": PROJECT}
    iam.roles[name] = {"name": name, "includedPermissions": list(HEAD_PERMISSIONS)}
    role = f"projects/{PROJECT}/roles/{name}"
    iam.policy["bindings"].append({"role": role, "members": [f"serviceAccount:{email}"]})
    iam.know(email)
    return email


async def forbid_rules_and_accounts(cloud: SimCloud) -> str:
    """Let the caller create neither firewall rules nor service accounts; an administrator has
    created both. Returns the email of the account."""
    gce = cloud.gce
    email = give_account(cloud)
    gce.store.add_default_rules()
    gce.denied |= {"compute.firewalls.create", "iam.serviceAccounts.create"}
    await gce.set_leftover_baseline()
    return email
