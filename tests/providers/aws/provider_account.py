"""The provider in the test's own process, against the simulated account: for tests that need no
login to an instance."""

from __future__ import annotations

import json
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
from tests.providers.aws.aws_bed import CLUSTER, cluster_file, limit_laptop
from tests.simcloud.cloud import SimCloud


@dataclass
class Account:
    """A user's view of an account; `directory` is the disk of their laptop. The user may do what
    `shoal iam-policy` prints."""

    cloud: SimCloud
    directory: Path
    settings: dict[str, Any] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        limit_laptop(self.cloud)
        self.cloud.ec2.permissions.limits_roles = True

    def file(self, **settings: Any) -> None:
        """Change settings of the cluster file."""
        self.settings.update(settings)

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
        await provider.terminate(self.spec, await provider.list_instances(CLUSTER))
        await provider.release(self.spec)
        await self.cloud.assert_nothing_left()

    def attempts(self, node_type: str) -> list[tuple[str, str, str, int]]:
        """The launch attempts of a node type: instance type, market, zone and number launched."""
        return [
            (e.instance_type, e.market, e.zone, e.launched)
            for e in self.events
            if isinstance(e, LaunchAttempted) and e.node_type == node_type
        ]
