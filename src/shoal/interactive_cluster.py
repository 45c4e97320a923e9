"""The cluster of a prompt: a list of machines, Ray put on them and started with one's own code.

from shoal import InteractiveCluster

cluster = InteractiveCluster("nodes.txt", key_file="key.pem", username="ubuntu")
cluster.install_ray()
cluster.start_ray("~/example_ray_code")
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from shoal import spec
from shoal.api import Cluster
from shoal.core.events import Emit, ignore_events
from shoal.ops import cluster_lookup, install_ray, interactive_nodes
from shoal.ray_runtime.ray_env import Installation
from shoal.spec.nodes_file import NodesFile


class InteractiveCluster(Cluster):
    """A list of machines, used step by step. All calls block until the work is done, and raise a
    `ShoalError` that says what failed, why, and how to mend it.

    `nodes` is a file with an address a line, the head's first. `installation_directory` is where
    Ray goes on each of them.
    """

    def __init__(
        self,
        nodes: str | Path,
        *,
        key_file: str | None = None,
        username: str | None = None,
        installation_directory: str = "~/",
        cluster_name: str | None = None,
        on_event: Emit | None = None,
    ) -> None:
        listed = NodesFile(str(nodes), key_file, username)
        loaded = cluster_lookup.load_file(listed, spec.Overrides(cluster_name=cluster_name))
        self._installation = Installation(installation_directory)
        self.spec = interactive_nodes.prepared(loaded.launchable(), self._installation)
        self._on_event = on_event or ignore_events

    def install_ray(
        self, version: str | None = None, *, wheel: str | None = None, git: str | None = None
    ) -> None:
        """Put Ray on every machine: the newest release, a `version`, a `wheel` that lies here, or
        a `git` revision (`REVISION` of Ray's own repository, or `URL@REVISION`)."""
        self._install(version, wheel, git, newer=False)

    def update_ray(
        self, version: str | None = None, *, wheel: str | None = None, git: str | None = None
    ) -> None:
        """Move all machines together to a newer Ray, or to the one that is named."""
        self._install(version, wheel, git, newer=True)

    def start_ray(self, worker_directory: str, num_workers_per_node: int = 10) -> None:
        """Copy the directory to every machine and start Ray, with so many workers on each, which
        can import what is in it. Tells the command that attaches a driver."""
        operation = interactive_nodes.start(
            self._context(), self.spec, self._installation, worker_directory, num_workers_per_node
        )
        self.spec = asyncio.run(operation)

    def restart_workers(self, worker_directory: str, num_workers_per_node: int = 10) -> None:
        """End the workers and start new ones with the code of this directory. Refused while tasks
        run."""
        operation = interactive_nodes.restart_workers(
            self._context(), self.spec, self._installation, worker_directory, num_workers_per_node
        )
        self.spec = asyncio.run(operation)

    def stop_ray(self) -> None:
        """End Ray on every machine. Ray and the machines stay."""
        asyncio.run(interactive_nodes.stop(self._context(), self.spec))

    def _install(
        self, version: str | None, wheel: str | None, git: str | None, *, newer: bool
    ) -> None:
        path = Path(wheel).expanduser() if wheel is not None else None
        wish = install_ray.RaySource(version, path, git)
        operation = install_ray.install(
            self._context(), self.spec, self._installation, wish, newer=newer
        )
        asyncio.run(operation)

    def __repr__(self) -> str:
        hosts = 1 + len(self.spec.provider.settings.get("worker_ips") or ())
        return f"<cluster {self.spec.cluster_name}: {hosts} machines>"
