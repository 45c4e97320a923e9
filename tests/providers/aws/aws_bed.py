"""A laptop with the real `shoal` and an AWS account whose instances are simulated hosts."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, field
from typing import Any

import boto3

from shoal.providers.aws import iam_policies
from tests.providers.local.ssh_bed import QUICK_START, SHOAL
from tests.simcloud.cloud import SimCloud
from tests.simcloud.console import Result
from tests.simcloud.ec2 import ACCESS_KEY, REGION
from tests.simcloud.hosts import Host

CLUSTER = "mine"


def cluster_file(**settings: Any) -> dict[str, Any]:
    """A head and two workers, with a fake Ray."""
    return {
        "cluster_name": CLUSTER,
        "provider": {"type": "aws", "region": "us-west-2"},
        "auth": {"ssh_user": "ubuntu"},
        "max_workers": 2,
        "available_node_types": {
            "head": {"node_config": {"InstanceType": "m5.large"}, "resources": {}},
            "worker": {
                "node_config": {"InstanceType": "m5.large"},
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


def limit_laptop(cloud: SimCloud, document: dict[str, Any] | None = None) -> None:
    """Let the laptop make only the calls that a policy allows: that of `shoal iam-policy`."""
    policy = iam_policies.to_json(document or iam_policies.caller_policy(), REGION)
    cloud.ec2.permissions.limits[ACCESS_KEY] = [policy]


@dataclass
class Bed:
    """A cloud, a laptop that may do what `shoal iam-policy` prints, and a cluster file on it."""

    cloud: SimCloud
    laptop: Host
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        limit_laptop(self.cloud)

    @functools.cached_property
    def ec2(self) -> Any:
        """An EC2 client for the account. Created once: that takes longer than most calls."""
        return boto3.client("ec2", **self.cloud.ec2.client_options())

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
        return events_of(done)

    async def down(self, options: str = "", *, home: str = "~/.shoal") -> None:
        """`shoal down` that must succeed and leave nothing."""
        done = await self.shoal(f"down c.yaml --yes {options}", home=home)
        assert done.code == 0, done.stdout + done.stderr
        await self.cloud.assert_nothing_left()

    def running(self) -> list[str]:
        """The ids of the instances that are billed now."""
        return [rental.id for rental in self.cloud.ledger.running()]


def events_of(done: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]
