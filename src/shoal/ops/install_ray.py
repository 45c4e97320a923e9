"""Installs the same Ray on all machines of a nodes file.

The head creates a virtualenv, so packages are downloaded once, and the other machines copy it from
the head in parallel, which is several times faster than installing on each. No machine switches to
the new virtualenv before all machines have it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.bootstrap import node_probe, steps
from shoal.bootstrap.file_sync import HeadRelay
from shoal.bootstrap.steps import NodeReporter
from shoal.cluster.handle import ClusterHandle
from shoal.core.concurrency import run_all
from shoal.core.errors import ConfigError, IncompleteError, SetupError, ShoalError, UnreachableError
from shoal.core.events import RayInstalled, Stage, Unchanged, Warned
from shoal.core.logs import suppress_and_log
from shoal.core.node_phase import Phase
from shoal.ops import known_clusters
from shoal.ops.context import Context
from shoal.providers.model import Instance, LaunchRequest, State, head_of
from shoal.ray_runtime import cluster_secrets
from shoal.ray_runtime.cluster_secrets import Credentials
from shoal.ray_runtime.ray_env import PYTHON_VERSION_PREFIX, RAY_VERSION_PREFIX, Installation
from shoal.remote.runner import Runner, Stream, capture
from shoal.spec.cluster_spec import ClusterSpec

_log = logging.getLogger(__name__)

_RAY_REPOSITORY = "https://github.com/ray-project/ray.git"
_SCRIPT_SECONDS = 60.0
_CONNECT_SECONDS = 60.0


@dataclass(frozen=True)
class RaySource:
    """Which Ray to install: a version, a local wheel, or a git revision. Default: the latest
    release."""

    version: str | None = None
    wheel: Path | None = None
    git: str | None = None

    def __post_init__(self) -> None:
        sources = [x for x in (self.version, self.wheel, self.git) if x is not None]
        if len(sources) > 1:
            raise ConfigError(
                "more than one Ray source", fix="pass a version, a wheel or a git revision"
            )
        if self.wheel is not None and not self.wheel.is_file():
            raise ConfigError(f"wheel {self.wheel} does not exist", fix="correct the path")
        if self.git is not None and "@" in self.git and "://" not in self.git:
            raise ConfigError(
                f"{self.git} is neither a revision nor the URL of a repository",
                why="pip needs the URL",
                fix="https://HOST/ray.git@REVISION, or ssh://git@HOST/ray.git@REVISION",
            )

    @property
    def is_latest(self) -> bool:
        return self == RaySource()

    @property
    def requirement(self) -> str:
        """The pip requirement. The path of a wheel is its path on the head."""
        if self.wheel is not None:
            return f"./ray-wheel/{self.wheel.name}[default]"
        if self.git is not None:
            url = self.git if "://" in self.git else f"{_RAY_REPOSITORY}@{self.git}"
            return f"ray[default] @ git+{url}#subdirectory=python"
        return f"ray[default]=={self.version}" if self.version else "ray[default]"


async def versions(ctx: Context, spec: ClusterSpec, installation: Installation) -> dict[str, str]:
    """The installed Ray version of each machine by node name; empty if there is none. Raises
    `IncompleteError` when a machine does not answer."""
    cluster = ClusterHandle.of(ctx, spec)
    return await _versions(cluster, await _all_machines(cluster), installation)


def common_version(versions: dict[str, str]) -> str:
    """The version that all machines have. Raises `ConfigError` when they differ."""
    distinct = sorted(set(versions.values()))
    if len(distinct) == 1 and distinct[0]:
        return distinct[0]
    missing = [name for name, version in versions.items() if not version]
    if missing:
        raise ConfigError(
            f"Ray is not installed on {', '.join(missing)}",
            why="all nodes need the same version",
            fix="cluster.install_ray()",
        )
    raise ConfigError(
        "the nodes have different versions of Ray",
        why=", ".join(f"{name} has {version}" for name, version in versions.items()),
        fix="cluster.update_ray() installs the latest on all nodes",
    )


async def install(
    ctx: Context,
    spec: ClusterSpec,
    installation: Installation,
    source: RaySource,
    *,
    newer: bool = False,
) -> str:
    """Install Ray on every machine and return its version. An installed version that satisfies
    `source` is kept; with `newer`, only if there is no newer one."""
    started = ctx.clock.monotonic()
    cluster = ClusterHandle.of(ctx, spec)
    ctx.emit(Stage("reading installed versions"))
    machines = await _all_machines(cluster)
    installed = await _versions(cluster, machines, installation)
    current = next(iter(installed.values())) if len(set(installed.values())) == 1 else ""
    if current and not newer and (source.is_latest or source.version == current):
        ctx.emit(Unchanged(spec.cluster_name, f"Ray {current} is installed on all nodes"))
        return current
    installer = _Installer(ctx, cluster, installation, source, current)
    known_clusters.record(ctx, spec)
    version = await installer.run(machines)
    if installer.is_current:
        ctx.emit(Unchanged(spec.cluster_name, f"Ray {current} is the latest"))
        return version
    seconds = ctx.clock.monotonic() - started
    ctx.emit(RayInstalled(spec.cluster_name, version, len(machines), seconds))
    if current and installer.ray_runs:
        ctx.emit(
            Warned(
                f"Ray {current} is still running",
                why="a running cluster keeps the version it was started with",
                fix="cluster.stop_ray(), then cluster.start_ray(...)",
            )
        )
    return version


class _Installer:
    """One installation on all machines in parallel.

    The futures are set by the head and awaited by the other machines: the cluster's credentials,
    the head's Python version, and the Ray version in its finished virtualenv. `current` is the
    version that all machines have now, or empty; `ray_runs` becomes true if Ray runs on any.
    """

    def __init__(
        self,
        ctx: Context,
        cluster: ClusterHandle,
        installation: Installation,
        source: RaySource,
        current: str,
    ) -> None:
        loop = asyncio.get_running_loop()
        self._ctx = ctx
        self._cluster = cluster
        self._spec = cluster.spec
        self._installation = installation
        self._source = source
        self._current = current
        self._env_name = time.strftime("%Y%m%d-%H%M%S", time.gmtime(ctx.clock.now()))
        self._credentials: asyncio.Future[Credentials] = loop.create_future()
        self._head_python: asyncio.Future[str] = loop.create_future()
        self._head_ray: asyncio.Future[str] = loop.create_future()
        self.ray_runs = False

    async def run(self, machines: Sequence[Instance]) -> str:
        head = head_of(machines)
        assert head is not None
        failures: dict[str, ShoalError] = {}

        async def prepare(machine: Instance) -> None:
            reporter = NodeReporter(machine, self._ctx.emit)
            try:
                await self._prepare(machine, head, reporter)
            except (ShoalError, TimeoutError) as caught:
                error = caught
                if not isinstance(error, ShoalError):
                    error = steps.timeout_error(error, machine.name)
                failures[machine.name] = error
                reporter.phase(Phase.FAILED, str(error))
                if machine is head:
                    self._fail_workers()

        await run_all(prepare(machine) for machine in machines)
        if failures:
            _log.info("installation failed on %s: removing it", ", ".join(failures))
            await run_all(self._delete_env(machine) for machine in machines)
            raise _incomplete(failures, len(machines))
        version = self._head_ray.result()
        installation = self._installation
        command = installation.delete_command if self.is_current else installation.switch_command
        await run_all(
            self._run(m, command(self._env_name), "switching to the new Ray", _SCRIPT_SECONDS)
            for m in machines
        )
        return version

    async def _delete_env(self, machine: Instance) -> None:
        """Delete the virtualenv of a failed installation, if the machine answers: the next attempt
        creates another, and may need the disk space."""
        with suppress_and_log(_log, f"clean up {machine.name}", ShoalError):
            command = self._installation.delete_command(self._env_name)
            await self._run(machine, command, "cleaning up", _SCRIPT_SECONDS)

    async def _prepare(self, machine: Instance, head: Instance, reporter: NodeReporter) -> None:
        """Give one machine a virtualenv with the new Ray, without switching to it."""
        runner = self._cluster.runner(machine)
        await runner.connect(timeout=_CONNECT_SECONDS)
        reporter.phase(Phase.REACHABLE)
        if claim := self._cluster.planner.claim(machine):
            await steps.claim(runner, claim, reporter)
        await self._share_credentials(machine, runner)
        self.ray_runs = self.ray_runs or (await node_probe.probe(runner, machine)).ray_runs
        await self._compare_python(machine, reporter)
        if machine is head:
            await self._create_env(machine, runner, reporter)
        else:
            reporter.phase(Phase.PREPARING, "waiting for the head's Ray")
            await asyncio.shield(self._head_ray)
            if not self.is_current:
                await self._copy_env(machine, head, reporter)
        reporter.phase(Phase.READY, "")

    @property
    def is_current(self) -> bool:
        """Whether the head installed the version that all machines already have."""
        return self._source.is_latest and self._head_ray.result() == self._current

    @property
    def _command_seconds(self) -> float:
        return self._spec.shoal.command_timeout_s

    async def _share_credentials(self, machine: Instance, runner: Runner) -> None:
        if machine.role == "head":
            credentials = await cluster_secrets.create_credentials(
                runner, self._spec.cluster_name, machine.id
            )
            self._credentials.set_result(credentials)
        else:
            await cluster_secrets.accept_credentials(
                runner, await asyncio.shield(self._credentials)
            )

    async def _compare_python(self, machine: Instance, reporter: NodeReporter) -> None:
        command = self._installation.python_version_command()
        output = await self._run(machine, command, "reading the Python version", _SCRIPT_SECONDS)
        python = _value_after(PYTHON_VERSION_PREFIX, output)
        if machine.role == "head":
            self._head_python.set_result(python)
        elif python != (head_python := await asyncio.shield(self._head_python)):
            raise SetupError(
                f"it has Python {python}, the head has {head_python}",
                why="all nodes of a Ray cluster need the same Python",
                fix=f"install Python {head_python} as python3, or remove the machine from the list",
                node=reporter.node,
            )

    async def _create_env(self, head: Instance, runner: Runner, reporter: NodeReporter) -> None:
        reporter.phase(Phase.PREPARING, "installing Ray for all nodes")
        if self._source.wheel is not None:
            await runner.put(self._source.wheel, f"{self._installation.wheel_directory}/")
        command = self._installation.create_command(self._env_name, self._source.requirement)
        output = await self._run(head, command, "installing Ray", self._command_seconds, reporter)
        self._head_ray.set_result(_value_after(RAY_VERSION_PREFIX, output))

    async def _copy_env(self, machine: Instance, head: Instance, reporter: NodeReporter) -> None:
        reporter.phase(Phase.PREPARING, f"copying Ray {self._head_ray.result()} from the head")
        source, target = self._cluster.runner(head), self._cluster.runner(machine)
        relay = HeadRelay(source, target, machine, self._command_seconds)
        env_directory = self._installation.env_directory(self._env_name)
        await relay.copy(env_directory, "all nodes need the same Ray")
        command = self._installation.adopt_command(self._env_name)
        await self._run(
            machine, command, "adopting the head's Ray", self._command_seconds, reporter
        )

    async def _run(
        self,
        machine: Instance,
        command: str,
        step: str,
        seconds: float,
        reporter: NodeReporter | None = None,
    ) -> list[str]:
        """Run one of the scripts, report its output, and return the output lines. `step` names it
        in errors."""
        output_lines: list[str] = []

        def on_line(line: str, stream: Stream) -> None:
            output_lines.append(line)
            if reporter is not None:
                reporter.output(line, stream)

        try:
            result = await self._cluster.runner(machine).run(
                command, on_line=on_line, timeout=seconds
            )
        except TimeoutError:
            why = f"it took more than {seconds:.0f} s"
            raise SetupError(f"{step} failed", why=why, node=machine.name) from None
        if not result.ok:
            raise SetupError(
                f"{step} failed with exit code {result.code}",
                why=result.tail[-1] if result.tail else "",
                fix="correct the cause shown in the output, then repeat the call",
                node=machine.name,
                output=result.tail,
            )
        return output_lines

    def _fail_workers(self) -> None:
        """Make the machines that wait for the head fail."""
        for future in (self._credentials, self._head_python, self._head_ray):
            if not future.done():
                future.set_exception(SetupError("the installation on the head failed"))
                future.exception()  # marks it as retrieved, in case no machine waits


async def _all_machines(cluster: ClusterHandle) -> list[Instance]:
    """All machines of the list, the head first, whether or not they belong to the cluster yet."""
    spec = cluster.spec
    instances = await cluster.instances()
    reachable = [i for i in instances if i.state is not State.UNREACHABLE]
    heads = sum(i.role == "head" for i in reachable)
    workers = spec.node_types[spec.head_node_type].max_workers
    missing_workers = workers - (len(reachable) - heads)
    launches = [
        LaunchRequest(spec.head_node_type, "head", 1 - heads, "install-head"),
        LaunchRequest(spec.head_node_type, "worker", missing_workers, "install-workers"),
    ]
    launched = await cluster.provider.launch(spec, [launch for launch in launches if launch.count])
    return sorted([*reachable, *launched], key=lambda i: (i.role != "head", i.name))


async def _versions(
    cluster: ClusterHandle, machines: Sequence[Instance], installation: Installation
) -> dict[str, str]:
    failures: dict[str, ShoalError] = {}

    async def read_version(machine: Instance) -> str:
        runner = cluster.runner(machine)
        try:
            await runner.connect(timeout=_CONNECT_SECONDS)
            _, output_lines = await capture(
                runner, installation.ray_version_command(), timeout=_SCRIPT_SECONDS
            )
        except (ShoalError, TimeoutError) as error:
            failures[machine.name] = (
                error if isinstance(error, ShoalError) else SetupError("does not answer")
            )
            return ""
        return _value_after(RAY_VERSION_PREFIX, output_lines)

    versions = await run_all(read_version(machine) for machine in machines)
    if failures:
        raise _incomplete(failures, len(machines))
    return {machine.name: version for machine, version in zip(machines, versions, strict=True)}


def _value_after(prefix: str, output_lines: Sequence[str]) -> str:
    """The rest of the last line with this prefix; empty if there is none."""
    values = [line.removeprefix(prefix) for line in output_lines if line.startswith(prefix)]
    return values[-1] if values else ""


def _incomplete(failures: dict[str, ShoalError], total: int) -> ShoalError:
    """One error for all failed machines, which explains one that has output, if any."""
    name, shown = next(iter(failures.items()))
    for candidate, error in failures.items():
        if not isinstance(error, UnreachableError) and error.output:
            name, shown = candidate, error
    return IncompleteError(
        f"could not install Ray on {len(failures)} of {total} nodes: {', '.join(failures)}",
        why=f"{name}: {shown.what}" + (f" ({shown.why})" if shown.why else ""),
        fix=f"{shown.fix}\n" * bool(shown.fix) + "repeat the call; no node was changed",
        output=shown.output,
    )
