"""The Python API: blocking methods over the operations in `shoal.ops`.

Run a program on a cluster and terminate it afterwards:

    from shoal import Cluster

    with Cluster("cluster.yaml") as cluster:
        print(cluster.exec("python script.py").stdout)

Use a few existing machines step by step, for example at a Python prompt:

    from shoal import InteractiveCluster

    cluster = InteractiveCluster("nodes.txt", key_file="key.pem", username="ubuntu")
    cluster.install_ray()
    cluster.start_ray("~/my_code")
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from shoal import spec
from shoal.core.errors import ShoalError
from shoal.core.events import Emit, Event, Output, ignore_events
from shoal.ops import cluster_lookup, down, execute, rsync_transfer, status, stop_start, up
from shoal.ops.context import Context

if TYPE_CHECKING:
    from shoal.ops.status import ClusterStatus


@dataclass(frozen=True)
class ExecResult:
    """The exit code and the output of a command."""

    code: int
    stdout: str
    stderr: str


class Cluster:
    """A Ray cluster.

    `source` is a cluster YAML file: its path or its URL. Without it, the cluster runs on this
    machine, with a head and two workers. `cluster_name` overrides the name in the file. `on_event`
    is called with each event of an operation (see `shoal.core.events`), for example to show
    progress.

    As a context manager, it brings the cluster up on entry and terminates it on exit, also after
    an exception. Every method blocks until it is done, asks for no confirmation, and raises
    `ShoalError` with the attributes `what`, `why` and `fix`. The methods cannot be called from a
    running event loop: use the async functions in `shoal.ops` there.
    """

    def __init__(
        self,
        source: str | Path | None = None,
        *,
        cluster_name: str | None = None,
        on_event: Emit | None = None,
    ) -> None:
        overrides = spec.Overrides(cluster_name=cluster_name)
        loaded = (
            spec.default_embedded(overrides)
            if source is None
            else cluster_lookup.load_file(source, overrides)
        )
        self.spec = loaded.launchable()
        self._on_event: Emit = on_event or ignore_events

    def up(self, *, no_restart: bool = False) -> None:
        """Bring the cluster to what its file says: launch what is missing, apply changes, and wait
        until all nodes are ready. With `no_restart`, apply changes without restarting Ray."""
        options = up.UpOptions(restart="never" if no_restart else "as needed")
        asyncio.run(up.up(self._context(), self.spec, options))

    def down(self) -> None:
        """Terminate the cluster, and wait until its provider confirms it."""
        asyncio.run(down.down(self._context(), self.spec))

    def status(self) -> ClusterStatus:
        """The nodes with their phases and resource usage; `.ready` if all nodes are ready."""
        return asyncio.run(status.status(self._context(), self.spec))

    def stop(self) -> None:
        """Stop Ray; on AWS also stop the instances."""
        asyncio.run(stop_start.stop(self._context(), self.spec))

    def start(self) -> None:
        """Start the cluster again after `stop`, without repeating its setup."""
        asyncio.run(stop_start.start(self._context(), self.spec))

    def upload(self, source: str, target: str, *, all_nodes: bool = False) -> None:
        """Copy a local file or directory to the head, or to all nodes. As with rsync, `dir` is
        copied into the target, `dir/` only its contents."""
        operation = rsync_transfer.upload(
            self._context(), self.spec, source, target, all_nodes=all_nodes
        )
        asyncio.run(operation)

    def download(self, source: str, target: str) -> None:
        """Copy a file or directory from the head to this machine, by the same rules as `upload`."""
        asyncio.run(rsync_transfer.download(self._context(), self.spec, source, target))

    def exec(self, command: str, *, check: bool = True, timeout: float | None = None) -> ExecResult:
        """Run a shell command on the head, where `ray.init()` finds the cluster, and return its
        output. With `check`, a non-zero exit code raises `ShoalError`. `timeout` is in seconds."""
        output: dict[str, list[str]] = {"stdout": [], "stderr": []}

        def collect(event: Event) -> None:
            if isinstance(event, Output):
                output[event.stream].append(event.line)
            self._on_event(event)

        operation = execute.run(self._context(collect), self.spec, command, timeout=timeout)
        result = asyncio.run(operation)
        if check and not result.ok:
            raise ShoalError(
                f"the command failed with exit code {result.code}",
                why=command,
                node="head",
                output=result.tail,
            )
        return ExecResult(result.code, "\n".join(output["stdout"]), "\n".join(output["stderr"]))

    def __enter__(self) -> Cluster:
        try:
            self.up()
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.down()

    def _context(self, emit: Emit | None = None) -> Context:
        return Context(emit=emit or self._on_event)


class InteractiveCluster(Cluster):
    """A Ray cluster of existing machines that is used step by step.

    `nodes` is a file with one address per line, the head's first. `key_file` and `username` are
    for SSH. Ray is installed below `installation_directory` on each machine.
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
        from shoal.ops import interactive_cluster  # `Cluster` does not need it
        from shoal.ray_runtime.ray_env import Installation
        from shoal.spec.nodes_file import NodesFile

        nodes_file = NodesFile(str(nodes), key_file, username)
        loaded = cluster_lookup.load_file(nodes_file, spec.Overrides(cluster_name=cluster_name))
        self._installation = Installation(installation_directory)
        self.spec = interactive_cluster.spec_with_installation(
            loaded.launchable(), self._installation
        )
        self._on_event = on_event or ignore_events

    def install_ray(
        self, version: str | None = None, *, wheel: str | None = None, git: str | None = None
    ) -> None:
        """Install Ray on every machine: the latest release, a `version`, a local `wheel`, or a
        `git` revision (`REVISION` of Ray's own repository, or `URL@REVISION`). Does nothing if all
        machines have it."""
        self._install(version, wheel, git, newer=False)

    def update_ray(
        self, version: str | None = None, *, wheel: str | None = None, git: str | None = None
    ) -> None:
        """Like `install_ray`, but also replaces an older version. If it fails on one machine, no
        machine changes."""
        self._install(version, wheel, git, newer=True)

    def start_ray(self, worker_directory: str, num_workers_per_node: int = 10) -> None:
        """Copy the local directory to every machine and start Ray there. Each machine runs up to
        `num_workers_per_node` tasks, which can import the modules in the directory. Emits the
        command that starts a driver on the head."""
        from shoal.ops import interactive_cluster

        operation = interactive_cluster.start(
            self._context(), self.spec, self._installation, worker_directory, num_workers_per_node
        )
        self.spec = asyncio.run(operation)

    def restart_workers(self, worker_directory: str, num_workers_per_node: int = 10) -> None:
        """Restart Ray with the modules in this directory. Raises `ShoalError` while tasks are
        running."""
        from shoal.ops import interactive_cluster

        operation = interactive_cluster.restart_workers(
            self._context(), self.spec, self._installation, worker_directory, num_workers_per_node
        )
        self.spec = asyncio.run(operation)

    def stop_ray(self) -> None:
        """Stop Ray on every machine. It stays installed."""
        self.stop()

    def _install(
        self, version: str | None, wheel: str | None, git: str | None, *, newer: bool
    ) -> None:
        from shoal.ops import install_ray

        path = Path(wheel).expanduser() if wheel is not None else None
        source = install_ray.RaySource(version, path, git)
        operation = install_ray.install(
            self._context(), self.spec, self._installation, source, newer=newer
        )
        asyncio.run(operation)

    def __repr__(self) -> str:
        hosts = 1 + len(self.spec.provider.settings.get("worker_ips") or ())
        return f"<cluster {self.spec.cluster_name}: {hosts} machines>"
