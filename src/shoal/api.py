"""The Python API: a thin, blocking face on the operations.

from shoal import Cluster

with Cluster("cluster.yaml") as cluster:
    print(cluster.exec("python script.py").stdout)
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
    """How a command on the cluster ended, and what it printed."""

    code: int
    stdout: str
    stderr: str


class Cluster:
    """A Ray cluster: from a YAML file, or, without one, on this machine.

    Used as a context, it is up inside and given back at the end, whatever happens. Every method
    raises a `ShoalError` that says what failed, why, and how to mend it. Not for use inside a
    running event loop: the functions in `shoal.ops` are the async form.
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
        """Bring the cluster up, or to what its file says now."""
        options = up.UpOptions(restart="never" if no_restart else "as needed")
        asyncio.run(up.up(self._context(), self.spec, options))

    def down(self) -> None:
        """Give its machines back."""
        asyncio.run(down.down(self._context(), self.spec))

    def status(self) -> ClusterStatus:
        """Its nodes as they are now."""
        return asyncio.run(status.status(self._context(), self.spec))

    def stop(self) -> None:
        """End Ray, and switch its machines off where that can be done."""
        asyncio.run(stop_start.stop(self._context(), self.spec))

    def start(self) -> None:
        """Bring it back after `stop`."""
        asyncio.run(stop_start.start(self._context(), self.spec))

    def upload(self, source: str, target: str, *, all_nodes: bool = False) -> None:
        """Copy a file or a directory of this machine to the head, or to all nodes."""
        operation = rsync_transfer.upload(
            self._context(), self.spec, source, target, all_nodes=all_nodes
        )
        asyncio.run(operation)

    def download(self, source: str, target: str) -> None:
        """Copy a file or a directory of the head to this machine."""
        asyncio.run(rsync_transfer.download(self._context(), self.spec, source, target))

    def exec(self, command: str, *, check: bool = True, timeout: float | None = None) -> ExecResult:
        """Run a shell command on the head, where `ray.init()` finds the cluster. With `check`,
        a command that fails raises."""
        printed: dict[str, list[str]] = {"stdout": [], "stderr": []}

        def listen(event: Event) -> None:
            if isinstance(event, Output):
                printed[event.stream].append(event.line)
            self._on_event(event)

        operation = execute.run(self._context(listen), self.spec, command, timeout=timeout)
        done = asyncio.run(operation)
        if check and not done.ok:
            raise ShoalError(
                f"the command failed with exit code {done.code}",
                why=command,
                node="head",
                output=done.tail,
            )
        return ExecResult(done.code, "\n".join(printed["stdout"]), "\n".join(printed["stderr"]))

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
