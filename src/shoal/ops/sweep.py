"""Runs a script many times with different parameters: starts the sweep on a cluster, and collects
its results in a local directory. The sweep goes on if this program ends, and the same directory
continues it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from shoal.core.errors import ConfigError
from shoal.core.events import Warned
from shoal.jobs.sweep.command import Style, check_template, detect_style
from shoal.jobs.sweep.journal import Result
from shoal.jobs.sweep.results import SweepDirectory, SweepState
from shoal.jobs.sweep.space import Space
from shoal.jobs.sweep.sweep_spec import (
    DEFAULT_ARTIFACT_BYTES,
    DEFAULT_OUTPUT_BYTES,
    SweepSpec,
)
from shoal.jobs.sweep.table import sorted_results
from shoal.ops import jobs, sweep_registry
from shoal.ops.context import Context
from shoal.ops.ephemeral_cluster import ephemeral_cluster
from shoal.ops.execute import chosen_code
from shoal.ops.sweep_follower import SweepFollower
from shoal.ops.up import UpOptions
from shoal.spec.cluster_spec import ClusterSpec


@dataclass(frozen=True)
class SweepOptions:
    """`code` is the directory that the nodes get: by default the current one if the script is in
    it, else the script's own. `style` is detected if it is empty."""

    script: Path
    space: Space = field(default_factory=Space)
    style: str = ""
    template: str = ""
    arguments: tuple[str, ...] = ()
    cpus: float = 1.0
    gpus: float = 0.0
    retries: int = 0
    time_limit_s: float | None = None
    max_failures: int = 0
    output_bytes: int = DEFAULT_OUTPUT_BYTES
    artifact_bytes: int = DEFAULT_ARTIFACT_BYTES
    code: Path | None = None
    requirements: Path | None = None
    output: Path | None = None
    env_vars: Mapping[str, str] = field(default_factory=dict)
    retry_failed: bool = False
    detach: bool = False


async def sweep(
    ctx: Context,
    cluster: ClusterSpec,
    options: SweepOptions,
    *,
    start: bool,
    stop: bool,
    applied: UpOptions | None = None,
) -> int:
    """Run the sweep, or what is left of it, and return 0 if no run has failed. Detached: return
    once it has started. With `start`, `applied` are options of `up` that apply also where the
    cluster runs."""
    _check_flags(options, stop=stop)
    options = _with_defaults(cluster, options)
    code, spec = make_spec(options)
    _check_resources(cluster, spec)
    output = options.output or _default_output(spec)
    with SweepDirectory(output) as directory:
        before = directory.load() if directory.exists else None
        spec = directory.continued(spec)
        directory.save(spec)
        state = replace(
            directory.state(),
            code=str(code),
            requirements=str(options.requirements.resolve()) if options.requirements else "",
        )
        directory.save_state(state)
        changed = before is not None and before.runs != spec.runs
        return await _run(
            ctx, cluster, directory, spec, options.env_vars, changed=changed, start=start,
            stop=stop, applied=applied, detach=options.detach, retry_failed=options.retry_failed,
        )  # fmt: skip


async def resume(
    ctx: Context,
    cluster: ClusterSpec,
    path: Path,
    *,
    start: bool,
    stop: bool,
    applied: UpOptions | None = None,
    env_vars: Mapping[str, str],
    detach: bool = False,
    retry_failed: bool = False,
) -> int:
    """Continue the sweep of a directory, with the code as it is now."""
    load_state(path)  # before a directory is created
    with SweepDirectory(path) as directory:
        return await _run(
            ctx, cluster, directory, directory.load(), env_vars, changed=False, start=start,
            stop=stop, applied=applied, detach=detach, retry_failed=retry_failed,
        )  # fmt: skip


async def stop_sweep(ctx: Context, cluster: ClusterSpec, path: Path) -> None:
    """End the Ray job of a sweep, with the runs that are running. `resume` continues it."""
    job = load_state(path).job
    if not job:
        raise ConfigError(f"the sweep in {path} was not started")
    await jobs.stop(ctx, cluster, job)


def load_state(path: Path) -> SweepState:
    """The state of the sweep in a directory. Raises `NotFoundError` if there is none."""
    directory = SweepDirectory(path)
    directory.load()
    return directory.state()


def show(path: Path, sort: str, *, descending: bool) -> tuple[list[Result], int]:
    """The results in a directory, sorted, and the number of runs of its sweep."""
    directory = SweepDirectory(path)
    total = len(directory.load().runs)
    results = list(directory.results().values())
    return sorted_results(results, sort, descending=descending), total


async def _run(
    ctx: Context,
    cluster: ClusterSpec,
    directory: SweepDirectory,
    spec: SweepSpec,
    env_vars: Mapping[str, str],
    *,
    changed: bool,
    start: bool,
    stop: bool,
    applied: UpOptions | None,
    detach: bool,
    retry_failed: bool,
) -> int:
    sweep_registry.record(ctx, directory.path)
    if not stop and not detach and cluster.shoal.autostop:
        ctx.emit(
            Warned(
                "the cluster has autostop",
                why="results that are not fetched before it stops are computed again",
                fix="keep this program running, or resume it in time",
            )
        )
    async with ephemeral_cluster(ctx, cluster, start=start, stop=stop, applied=applied):
        follower = SweepFollower(ctx, cluster, directory, spec, env_vars)
        if retry_failed or not follower.is_complete:
            await follower.start(changed=changed, retry_failed=retry_failed)
            if detach:
                return 0
        return await follower.follow(stops_cluster=stop)


def _with_defaults(cluster: ClusterSpec, options: SweepOptions) -> SweepOptions:
    """With the code and requirements of the cluster's file, if the script is in that code."""
    code, requirements = chosen_code(cluster, options.code, options.requirements)
    if options.code is None and code and code.resolve() not in options.script.resolve().parents:
        return options
    return replace(options, code=code, requirements=requirements)


def make_spec(options: SweepOptions) -> tuple[Path, SweepSpec]:
    """The directory of the code, and the sweep. Raises `ConfigError` for options that make no
    sense."""
    code, script = _code(options)
    params = options.space.runs()
    style: Style
    if options.template:
        names = [*options.space.grid, *options.space.random]
        check_template(options.template, names)
        style = "template"
    else:
        style = options.style or detect_style(options.script)  # type: ignore[assignment]
    spec = SweepSpec(
        id=f"{options.script.stem}-{secrets.token_hex(3)}",
        script=script,
        style=style,
        template=options.template,
        arguments=options.arguments,
        cpus=options.cpus,
        gpus=options.gpus,
        retries=options.retries,
        time_limit_s=options.time_limit_s,
        max_failures=options.max_failures,
        output_bytes=options.output_bytes,
        artifact_bytes=options.artifact_bytes,
        created=time.time(),
    )
    return code, spec.with_params(params)


def _code(options: SweepOptions) -> tuple[Path, str]:
    script = options.script
    if not script.is_file():
        raise ConfigError(
            f"script {script} not found",
            why="it is a directory" if script.is_dir() else "no such file",
            fix="pass the path of a local Python file",
        )
    path, here = script.resolve(), Path.cwd().resolve()
    directory = options.code
    if directory is None:
        directory = here if here in path.parents else path.parent
    directory = directory.resolve()
    if not directory.is_dir():
        raise ConfigError(f"--code {directory} is not a directory")
    if directory not in path.parents:
        raise ConfigError(
            f"script {script} is not in the code's directory {directory}",
            fix="choose a directory that contains it: --code DIR",
        )
    return directory, str(path.relative_to(directory))


def _check_flags(options: SweepOptions, *, stop: bool) -> None:
    if stop and options.detach:
        raise ConfigError(
            "--stop cannot be combined with --detach",
            why="the sweep goes on after this program exits",
            fix="omit one of them\nor end the cluster when it is idle: --start --autostop 10m",
        )
    if options.template and options.style:
        raise ConfigError("use --template or --style, not both")


def _check_resources(cluster: ClusterSpec, spec: SweepSpec) -> None:
    """Raise `ConfigError` if no node type can have the resources of a run."""
    for name, amount in (("CPU", spec.cpus), ("GPU", spec.gpus)):
        known = [t.resources.get(name) for t in cluster.node_types.values() if t.resources]
        if amount and known and all(count is not None and count < amount for count in known):
            raise ConfigError(
                f"no node of {cluster.cluster_name} has {amount:g} {name}s for a run",
                why=f"its node types have at most {max(filter(None, known), default=0):g}",
                fix=f"request fewer: --{name.lower()}s N",
            )


def _default_output(spec: SweepSpec) -> Path:
    return Path("sweeps") / spec.id
