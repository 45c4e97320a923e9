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
import concurrent.futures
import contextlib
import contextvars
import shlex
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from shoal import spec
from shoal.core.errors import ShoalError, as_shoal_error, fix_for_cluster
from shoal.core.events import Emit
from shoal.ops import cluster_lookup, down, execute, rsync_transfer, status, stop_start, up
from shoal.ops.cluster_lookup import ClusterRef
from shoal.ops.context import ClusterArguments, Context

if TYPE_CHECKING:
    from shoal.ops.status import ClusterStatus

T = TypeVar("T")

# How many lines of a failed command's output its error shows.
_ERROR_LINES = 20
# How long an interrupt waits for an operation in another thread to clean up.
_INTERRUPT_SECONDS = 60.0


@dataclass(frozen=True)
class ExecResult:
    """The exit code of a command and its output: as text, and byte for byte."""

    code: int
    stdout_bytes: bytes
    stderr_bytes: bytes

    @property
    def stdout(self) -> str:
        """Standard output as text. Bytes that are not UTF-8 are replaced."""
        return self.stdout_bytes.decode(errors="replace")

    @property
    def stderr(self) -> str:
        """Standard error as text. Bytes that are not UTF-8 are replaced."""
        return self.stderr_bytes.decode(errors="replace")


class CommandFailedError(ShoalError):
    """A command on the cluster failed. `result` has its exit code and its whole output."""

    def __init__(self, command: str, result: ExecResult) -> None:
        printed = (result.stderr or result.stdout).splitlines()
        super().__init__(
            f"the command failed with exit code {result.code}",
            why=command,
            node="head",
            output=printed[-_ERROR_LINES:],
        )
        self.result = result

    def __str__(self) -> str:
        return "\n".join([super().__str__(), *(f"  | {line}" for line in self.output)])


class Cluster:
    """A Ray cluster.

    `source` is a cluster YAML file, its path or its URL, or the name of a cluster that was brought
    up from this machine. Without it, the cluster runs on this machine, with a head and two workers.
    `cluster_name` overrides the name in the file. `on_event` is called with each event of an
    operation (see `shoal.core.events`), in a notebook from another thread; without it, progress is
    printed on standard error.

    As a context manager, it brings the cluster up on entry and terminates it on exit, also after
    an exception. Every method blocks until it is done, also in a running event loop such as a
    notebook's, asks for no confirmation, and raises `ShoalError` with the attributes `what`,
    `why`, `fix` and `output`.
    """

    def __init__(
        self,
        source: str | Path | None = None,
        *,
        cluster_name: str | None = None,
        on_event: Emit | None = None,
    ) -> None:
        self._on_event = on_event
        self.spec = _run(self._load(source, spec.Overrides(cluster_name=cluster_name)))

    async def _load(self, source: str | Path | None, overrides: spec.Overrides) -> spec.ClusterSpec:
        if source is None:
            return cluster_lookup.locate_default(self._context(), overrides).spec
        return await cluster_lookup.resolve(self._context(), ClusterRef(str(source), overrides))

    def up(self, *, no_restart: bool = False) -> None:
        """Bring the cluster to what its file says: launch what is missing, apply changes, and wait
        until all nodes are ready. With `no_restart`, apply changes without restarting Ray."""
        options = up.UpOptions(restart="never" if no_restart else "as needed")
        self._run(up.up(self._context(), self.spec, options))

    def down(self) -> None:
        """Terminate the cluster, and wait until its provider confirms it."""
        self._run(down.down(self._context(), self.spec))

    def status(self) -> ClusterStatus:
        """The nodes with their phases and resource usage; `.ready` if all nodes are ready."""
        return self._run(status.status(self._context(), self.spec))

    def stop(self) -> None:
        """Stop Ray; on AWS also stop the instances."""
        self._run(stop_start.stop(self._context(), self.spec))

    def start(self) -> None:
        """Start the cluster again after `stop`, without repeating its setup."""
        self._run(stop_start.start(self._context(), self.spec))

    def upload(self, source: str, target: str, *, all_nodes: bool = False) -> None:
        """Copy a local file or directory to the head, or to all nodes. As with rsync, `dir` is
        copied into the target, `dir/` only its contents."""
        operation = rsync_transfer.upload(
            self._context(), self.spec, source, target, all_nodes=all_nodes
        )
        self._run(operation)

    def download(self, source: str, target: str) -> None:
        """Copy a file or directory from the head to this machine, by the same rules as `upload`."""
        self._run(rsync_transfer.download(self._context(), self.spec, source, target))

    def exec(self, command: str, *, check: bool = True, timeout: float | None = None) -> ExecResult:
        """Run a shell command on the head, where `ray.init()` finds the cluster, and return its
        output. On an embedded cluster it runs in the current directory. With `check`, a non-zero
        exit code raises `CommandFailedError`, which has the output. `timeout` is in seconds."""
        output = {"stdout": bytearray(), "stderr": bytearray()}
        operation = execute.run(
            self._context(),
            self.spec,
            command,
            timeout=timeout,
            on_bytes=lambda chunk, stream: output[stream].extend(chunk),
        )
        code = self._run(operation).code
        result = ExecResult(code, bytes(output["stdout"]), bytes(output["stderr"]))
        if check and code != 0:
            raise CommandFailedError(command, result)
        return result

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

    def _run(self, operation: Coroutine[Any, Any, T]) -> T:
        return _run(operation, shlex.quote(self.spec.cluster_name))

    def _context(self) -> Context:
        if self._on_event is not None:
            return Context(emit=self._on_event)
        # Not needed by most programs that import this module.
        from shoal.cli.render.plain import PlainRenderer
        from shoal.cli.run import with_cluster

        name = self.spec.cluster_name if hasattr(self, "spec") else ""
        renderer, cluster = (
            PlainRenderer(verbose=False),
            ClusterArguments(name and shlex.quote(name)),
        )
        return Context(
            emit=lambda event: renderer.event(with_cluster(event, cluster.text)),
            cluster_arguments=cluster,
        )


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
        self._on_event = on_event

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
        self.spec = self._run(operation)

    def restart_workers(self, worker_directory: str, num_workers_per_node: int = 10) -> None:
        """Restart Ray with the modules in this directory. Raises `ShoalError` while tasks are
        running."""
        from shoal.ops import interactive_cluster

        operation = interactive_cluster.restart_workers(
            self._context(), self.spec, self._installation, worker_directory, num_workers_per_node
        )
        self.spec = self._run(operation)

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
        self._run(operation)

    def __repr__(self) -> str:
        hosts = 1 + len(self.spec.provider.settings.get("worker_ips") or ())
        return f"<cluster {self.spec.cluster_name}: {hosts} machines>"


def _run(operation: Coroutine[Any, Any, T], cluster: str = "") -> T:
    """Run an operation to its end. Every failure is a `ShoalError`, and where Python can show
    notes with an exception, they have its output and its fix. `cluster` completes the commands in
    the fix."""
    try:
        return _run_in_thread(operation) if _is_loop_running() else asyncio.run(operation)
    except ShoalError as error:
        _add_notes(error, cluster)
        raise
    except Exception as error:
        failure = as_shoal_error(error)
        _add_notes(failure, cluster)
        raise failure from error


def _is_loop_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _run_in_thread(operation: Coroutine[Any, Any, T]) -> T:
    """Run an operation in the event loop of another thread, because this thread's is in use. An
    interrupt here cancels it, and waits until it has cleaned up."""
    cancel: concurrent.futures.Future[Callable[[], object]] = concurrent.futures.Future()

    async def cancellable() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        cancel.set_result(lambda: loop.call_soon_threadsafe(task.cancel))
        return await operation

    outcome: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        try:
            outcome.set_result(asyncio.run(cancellable()))
        except BaseException as error:
            outcome.set_exception(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,))
    try:
        thread.start()
        return outcome.result()
    except KeyboardInterrupt:
        # It may be about to start, or have just ended.
        with contextlib.suppress(concurrent.futures.TimeoutError, RuntimeError):
            cancel.result(_INTERRUPT_SECONDS)()
        concurrent.futures.wait([outcome], _INTERRUPT_SECONDS)
        raise


def _add_notes(error: ShoalError, cluster: str) -> None:
    error.fix = fix_for_cluster(error.fix, cluster)
    if add_note := getattr(error, "add_note", None):  # Python 3.11 and newer
        for line in error.output:
            add_note(f"  | {line}")
        if error.fix:
            add_note(f"  fix: {error.fix}")
