"""Puts Ray on the machines of a list, the same on all of them, and moves them together.

The head makes an environment, with packages that are thereby fetched once, and hands it to all
others side by side: unpacking and compiling it on each would take several times as long as sending
it. Only when all have it does any of them use it.
"""

from __future__ import annotations

import asyncio
import contextlib
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
from shoal.core.node_phase import Phase
from shoal.ops import known_clusters
from shoal.ops.context import Context
from shoal.providers.model import Instance, LaunchRequest, State
from shoal.ray_runtime import cluster_secrets
from shoal.ray_runtime.cluster_secrets import Credentials
from shoal.ray_runtime.ray_env import PYTHON_VERSION_PREFIX, RAY_VERSION_PREFIX, Installation
from shoal.remote.runner import Runner, Stream, capture
from shoal.spec.cluster_spec import ClusterSpec

_RAYS_REPOSITORY = "https://github.com/ray-project/ray.git"
_SHORT_SECONDS = 60.0
_REACH_SECONDS = 60.0


@dataclass(frozen=True)
class RaySource:
    """Which Ray: a version, a wheel that lies here, or a revision of a git repository; the newest
    release if nothing is said."""

    version: str | None = None
    wheel: Path | None = None
    git: str | None = None

    def __post_init__(self) -> None:
        given = [x for x in (self.version, self.wheel, self.git) if x is not None]
        if len(given) > 1:
            raise ConfigError("a version, a wheel or a git revision is expected, not several")
        if self.wheel is not None and not self.wheel.is_file():
            raise ConfigError(f"{self.wheel} does not exist", why="it is to be installed")
        if self.git is not None and "@" in self.git and "://" not in self.git:
            raise ConfigError(
                f"{self.git} is neither a revision nor a repository that pip knows how to reach",
                why="a repository is named by its URL",
                fix="https://HOST/ray.git@REVISION, or ssh://git@HOST/ray.git@REVISION",
            )

    @property
    def is_met_by_any(self) -> bool:
        return self == RaySource()

    @property
    def requirement(self) -> str:
        """In pip's words. A file's path is that on the head."""
        if self.wheel is not None:
            return f"./ray-wheel/{self.wheel.name}[default]"
        if self.git is not None:
            where = self.git if "://" in self.git else f"{_RAYS_REPOSITORY}@{self.git}"
            return f"ray[default] @ git+{where}#subdirectory=python"
        return f"ray[default]=={self.version}" if self.version else "ray[default]"


async def versions(ctx: Context, spec: ClusterSpec, installation: Installation) -> dict[str, str]:
    """The Ray that each of the machines uses, by node name; empty where there is none. Raises
    `IncompleteError` when one cannot be asked."""
    cluster = ClusterHandle.of(ctx, spec)
    return await _versions(cluster, await _machines(cluster), installation)


def same_everywhere(found: dict[str, str]) -> str:
    """The version that all machines have. Raises `ConfigError` when they differ."""
    distinct = sorted(set(found.values()))
    if len(distinct) == 1 and distinct[0]:
        return distinct[0]
    missing = [name for name, version in found.items() if not version]
    if missing:
        raise ConfigError(
            f"Ray is not installed on {', '.join(missing)}",
            why="every node needs the same one",
            fix="cluster.install_ray()",
        )
    raise ConfigError(
        "the nodes do not have the same Ray",
        why=", ".join(f"{name} has {version}" for name, version in found.items()),
        fix="cluster.update_ray() moves all of them to the newest",
    )


async def install(
    ctx: Context,
    spec: ClusterSpec,
    installation: Installation,
    wish: RaySource,
    *,
    newer: bool = False,
) -> str:
    """Give every machine the Ray that is wished for, and return its version. With `newer`, the
    Ray that is there does not do unless there is no newer one."""
    began = ctx.clock.monotonic()
    cluster = ClusterHandle.of(ctx, spec)
    ctx.emit(Stage("looking at the machines"))
    machines = await _machines(cluster)
    found = await _versions(cluster, machines, installation)
    there = next(iter(found.values())) if len(set(found.values())) == 1 else ""
    if there and not newer and (wish.is_met_by_any or wish.version == there):
        ctx.emit(Unchanged(spec.cluster_name, f"Ray {there} is installed on all nodes"))
        return there
    work = _Installing(ctx, spec, cluster, installation, wish, there)
    known_clusters.record(ctx, spec)
    version = await work.run(machines)
    if work.is_there:
        ctx.emit(Unchanged(spec.cluster_name, f"Ray {there} is the newest"))
        return version
    seconds = ctx.clock.monotonic() - began
    ctx.emit(RayInstalled(spec.cluster_name, version, len(machines), seconds))
    if there and work.runs:
        ctx.emit(
            Warned(
                f"Ray {there} still runs",
                why="a running cluster keeps the Ray it was started with",
                fix="cluster.stop_ray(), then cluster.start_ray(...)",
            )
        )
    return version


class _Installing:
    """One installation, on all machines side by side."""

    def __init__(
        self,
        ctx: Context,
        spec: ClusterSpec,
        cluster: ClusterHandle,
        installation: Installation,
        wish: RaySource,
        there: str,
    ) -> None:
        loop = asyncio.get_running_loop()
        self._ctx = ctx
        self._spec = spec
        self._site = cluster
        self._installation = installation
        self._wish = wish
        self._there = there
        self._name = time.strftime("%Y%m%d-%H%M%S", time.gmtime(ctx.clock.now()))
        self._credentials: asyncio.Future[Credentials] = loop.create_future()
        self._python: asyncio.Future[str] = loop.create_future()
        self._made: asyncio.Future[str] = loop.create_future()
        self.runs = False

    async def run(self, machines: Sequence[Instance]) -> str:
        head = next(m for m in machines if m.role == "head")
        failures: dict[str, ShoalError] = {}

        async def one(machine: Instance) -> None:
            voice = NodeReporter(machine, self._ctx.emit)
            try:
                await self._one(machine, head, voice)
            except (ShoalError, TimeoutError) as caught:
                error = caught
                if not isinstance(error, ShoalError):
                    error = steps.timeout_error(error, machine.name)
                failures[machine.name] = error
                voice.phase(Phase.FAILED, str(error))
                if machine is head:
                    self._give_up()

        await run_all(one(machine) for machine in machines)
        if failures:
            await run_all(self._drop(machine) for machine in machines)
            raise _incomplete(failures, len(machines))
        version = self._made.result()
        last = (
            self._installation.delete_command
            if self.is_there
            else self._installation.switch_command
        )
        await run_all(
            self._script(m, last(self._name), "moving to the new Ray", _SHORT_SECONDS)
            for m in machines
        )
        return version

    async def _drop(self, machine: Instance) -> None:
        """Take away what a machine has of an installation that failed, if it answers: the next try
        makes another, and a disk that was full must not be fuller then."""
        with contextlib.suppress(ShoalError):
            dropped = self._installation.delete_command(self._name)
            await self._script(machine, dropped, "cleaning up", _SHORT_SECONDS)

    async def _one(self, machine: Instance, head: Instance, voice: NodeReporter) -> None:
        runner = self._site.provider.runner(self._spec, machine)
        await runner.connect(timeout=_REACH_SECONDS)
        voice.phase(Phase.REACHABLE)
        if claim := self._site.planner.claim(machine):
            await steps.claim(runner, claim, voice)
        await self._share_credentials(machine, runner)
        self.runs = self.runs or (await node_probe.probe(runner, machine)).ray_runs
        await self._compare_python(machine, voice)
        if machine is head:
            await self._make(machine, runner, voice)
        else:
            voice.phase(Phase.PREPARING, "waits for the head's Ray")
            await asyncio.shield(self._made)
            if not self.is_there:
                await self._adopt(machine, head, voice)
        voice.phase(Phase.READY, "")

    @property
    def is_there(self) -> bool:
        """Whether what the head got is what the machines have already."""
        return self._wish.is_met_by_any and self._made.result() == self._there

    @property
    def _seconds(self) -> float:
        return self._spec.shoal.command_timeout_s

    async def _share_credentials(self, machine: Instance, runner: Runner) -> None:
        if machine.role == "head":
            made = await cluster_secrets.create_credentials(
                runner, self._spec.cluster_name, machine.id
            )
            self._credentials.set_result(made)
        else:
            await cluster_secrets.accept_credentials(
                runner, await asyncio.shield(self._credentials)
            )

    async def _compare_python(self, machine: Instance, voice: NodeReporter) -> None:
        command = self._installation.python_version_command()
        printed = await self._script(machine, command, "asking for its Python", _SHORT_SECONDS)
        python = _answer(printed, PYTHON_VERSION_PREFIX)
        if machine.role == "head":
            self._python.set_result(python)
        elif python != (heads := await asyncio.shield(self._python)):
            raise SetupError(
                f"it has Python {python}, and the head has {heads}",
                why="the nodes of a Ray cluster need the same Python",
                fix=f"install Python {heads} there as python3, or leave the machine out",
                node=voice.node,
            )

    async def _make(self, head: Instance, runner: Runner, voice: NodeReporter) -> None:
        voice.phase(Phase.PREPARING, "fetches and installs Ray, for all")
        if self._wish.wheel is not None:
            await runner.put(self._wish.wheel, f"{self._installation.wheel_directory}/")
        command = self._installation.create_command(self._name, self._wish.requirement)
        printed = await self._script(head, command, "installing Ray", self._seconds, voice)
        self._made.set_result(_answer(printed, RAY_VERSION_PREFIX))

    async def _adopt(self, machine: Instance, head: Instance, voice: NodeReporter) -> None:
        voice.phase(Phase.PREPARING, f"gets Ray {self._made.result()} from the head")
        source, runner = (self._site.provider.runner(self._spec, m) for m in (head, machine))
        files = HeadRelay(source, runner, machine, self._seconds)
        environment = self._installation.env_directory(self._name)
        await files.copy(environment, "all nodes are to have the same Ray")
        command = self._installation.adopt_command(self._name)
        await self._script(machine, command, "using the head's Ray", self._seconds, voice)

    async def _script(
        self,
        machine: Instance,
        command: str,
        what: str,
        seconds: float,
        voice: NodeReporter | None = None,
    ) -> list[str]:
        """Run one of the scripts, its output told as it comes, and return what it printed."""
        printed: list[str] = []

        def heard(line: str, stream: Stream) -> None:
            printed.append(line)
            if voice is not None:
                voice.output(line, stream)

        runner = self._site.provider.runner(self._spec, machine)
        try:
            done = await runner.run(command, on_line=heard, timeout=seconds)
        except TimeoutError:
            why = f"it took more than {seconds:.0f} s"
            raise SetupError(f"{what} failed", why=why, node=machine.name) from None
        if not done.ok:
            raise SetupError(
                f"{what} failed with exit code {done.code}",
                why=done.tail[-1] if done.tail else "",
                fix="see what it printed; the same call again starts over",
                node=machine.name,
                output=done.tail,
            )
        return printed

    def _give_up(self) -> None:
        for future in (self._credentials, self._python, self._made):
            if not future.done():
                future.set_exception(SetupError("the head could not do its part"))
                future.exception()  # looked at here, in case no worker is waiting


async def _machines(cluster: ClusterHandle) -> list[Instance]:
    """All machines of the list, whether or not they are the cluster's yet."""
    spec = cluster.spec
    found = await cluster.instances()
    there = [i for i in found if i.state is not State.UNREACHABLE]
    heads = sum(i.role == "head" for i in there)
    wanted = spec.node_types[spec.head_node_type].max_workers
    launches = [
        LaunchRequest(spec.head_node_type, "head", 1 - heads, "install-head"),
        LaunchRequest(
            spec.head_node_type, "worker", wanted - (len(there) - heads), "install-workers"
        ),
    ]
    created = await cluster.provider.launch(spec, [launch for launch in launches if launch.count])
    return sorted([*there, *created], key=lambda i: (i.role != "head", i.name))


async def _versions(
    cluster: ClusterHandle, machines: Sequence[Instance], installation: Installation
) -> dict[str, str]:
    silent: dict[str, ShoalError] = {}

    async def one(machine: Instance) -> str:
        runner = cluster.runner(machine)
        try:
            await runner.connect(timeout=_REACH_SECONDS)
            _, printed = await capture(
                runner, installation.ray_version_command(), timeout=_SHORT_SECONDS
            )
        except (ShoalError, TimeoutError) as error:
            silent[machine.name] = (
                error if isinstance(error, ShoalError) else SetupError("it does not answer")
            )
            return ""
        return _answer(printed, RAY_VERSION_PREFIX)

    found = await run_all(one(machine) for machine in machines)
    if silent:
        raise _incomplete(silent, len(machines))
    return {machine.name: version for machine, version in zip(machines, found, strict=True)}


def _answer(printed: Sequence[str], mark: str) -> str:
    found = [line.removeprefix(mark) for line in printed if line.startswith(mark)]
    return found[-1] if found else ""


def _incomplete(failures: dict[str, ShoalError], total: int) -> ShoalError:
    name, first = next(iter(failures.items()))
    for candidate, error in failures.items():
        if not isinstance(error, UnreachableError) and error.output:
            name, first = candidate, error
    return IncompleteError(
        f"Ray could not be installed on {len(failures)} of {total} nodes: {', '.join(failures)}",
        why=f"{name}: {first.what}" + (f" ({first.why})" if first.why else ""),
        fix=f"{first.fix}\n" * bool(first.fix) + "the same call again; no node was changed",
        output=first.output,
    )
