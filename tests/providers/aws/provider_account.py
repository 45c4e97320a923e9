"""The provider itself, in the test's own process, against the simulated account: for all that
needs no login to a machine."""

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
from tests.providers.aws.aws_bed import CLUSTER, cluster_file
from tests.simcloud.cloud import SimCloud


@dataclass
class Account:
    """One person's view of an account; `directory` is their laptop's disk."""

    cloud: SimCloud
    directory: Path
    settings: dict[str, Any] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)

    def file(self, **settings: Any) -> None:
        """What the cluster's file says."""
        self.settings.update(settings)

    @property
    def spec(self) -> ClusterSpec:
        file = self.directory / "c.yaml"
        file.write_text(json.dumps(cluster_file(**self.settings)))
        return spec.load(str(file)).launchable()

    def provider(self, home: str = "home", *, on_head: bool = False) -> Provider:
        """A new program, on a laptop or head that remembers what is in `home`."""
        place = self.directory / home
        return provider_for(self.spec, place, SystemClock(), self.events.append, on_head=on_head)

    async def launch(self, token: str = "t", workers: int = 2) -> list[Instance]:
        """Ask for a head and workers, as `up` does."""
        wishes = [LaunchRequest("head", "head", 1, f"{token}-h")]
        wishes.append(LaunchRequest("worker", "worker", workers, f"{token}-w"))
        return list(await self.provider().launch(self.spec, wishes))

    async def end(self, home: str = "another-home") -> None:
        """End everything, as `down` does on another laptop, and see that nothing is left."""
        provider = self.provider(home)
        await provider.terminate(self.spec, await provider.list_instances(CLUSTER))
        await provider.release(self.spec)
        await self.cloud.assert_nothing_left()

    def tried(self, node_type: str) -> list[tuple[str, str, str, int]]:
        """What was asked for on behalf of a node type: machine, market, zone, and what came."""
        return [
            (e.instance_type, e.market, e.zone, e.launched)
            for e in self.events
            if isinstance(e, LaunchAttempted) and e.node_type == node_type
        ]
