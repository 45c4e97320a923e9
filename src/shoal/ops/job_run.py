"""Runs a job from start to end: brings the cluster up if it must, submits the job, follows it, and
returns its exit code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shoal.core.errors import ConfigError
from shoal.core.events import JobContinues, Warned
from shoal.jobs.client import RayJob
from shoal.jobs.known_failures import known_failure
from shoal.jobs.package import Package
from shoal.ops import jobs
from shoal.ops.cluster_lookup import LocatedSpec
from shoal.ops.context import Context
from shoal.ops.ephemeral_cluster import ephemeral_cluster
from shoal.ops.execute import chosen_code
from shoal.ops.up import UpOptions

# The end of the output, in which the cause of a failure is looked for.
_KEPT_BYTES = 8192


@dataclass(frozen=True)
class JobOptions:
    """A job and how to run it. `resources` are for its driver. With `applies_flags`, the cluster is
    brought up also where it runs already, so that options such as --autostop apply."""

    entrypoint: str
    code: Path | None = None
    requirements: Path | None = None
    env_vars: Mapping[str, str] = field(default_factory=dict)
    job_id: str = ""
    resources: Mapping[str, float] = field(default_factory=dict)
    start: bool = False
    stop: bool = False
    detach: bool = False
    applies_flags: bool = False


async def run_job(
    ctx: Context, cluster: LocatedSpec | str, options: JobOptions, write: Callable[[bytes], None]
) -> int:
    """Returns the job's exit code; 0 if it is detached. `write` gets its output."""
    _check(cluster, options)
    code, requirements = options.code, options.requirements
    if not isinstance(cluster, str):
        code, requirements = chosen_code(cluster.spec, code, requirements)
    package = await asyncio.to_thread(jobs.make_package, ctx, code, requirements)
    if isinstance(cluster, str):
        return await _submit_and_follow(ctx, cluster, options, package, write)
    spec, applied = cluster.spec, None
    if options.applies_flags:
        applied = UpOptions(flags=cluster.flags, source_of=cluster.source_of)
    async with ephemeral_cluster(
        ctx, spec, start=options.start, stop=options.stop, applied=applied
    ):
        return await _submit_and_follow(ctx, spec, options, package, write)


async def _submit_and_follow(
    ctx: Context,
    cluster: jobs.Cluster,
    options: JobOptions,
    package: Package | None,
    write: Callable[[bytes], None],
) -> int:
    async with jobs.connect(ctx, cluster) as client:
        id = await jobs.submit_package(
            ctx, cluster, client, options.entrypoint, package,
            env_vars=options.env_vars, job_id=options.job_id, resources=options.resources,
        )  # fmt: skip
    if options.detach:
        return 0
    end = bytearray()

    def write_and_keep(chunk: bytes) -> None:
        end.extend(chunk)
        del end[:-_KEPT_BYTES]
        write(chunk)

    try:
        code = exit_code(await jobs.follow(ctx, cluster, id, write_and_keep))
    except asyncio.CancelledError:
        if not options.stop:
            ctx.emit(JobContinues(id))
        raise
    if code and (known := known_failure(end.decode(errors="replace"))):
        ctx.emit(Warned(known.why, fix=known.fix))
    return code


def exit_code(job: RayJob) -> int:
    """The job's exit code. Raises `JobError` if it ended without running its command, or Ray knows
    why it failed better than its output does."""
    if job.exit_code is None and job.status != "SUCCEEDED":
        raise jobs.JobError(f"job {job.id} {_how(job.status)}", why=job.message)
    return job.status_code


def _how(status: str) -> str:
    return "was stopped" if status == "STOPPED" else "failed"


def _check(cluster: LocatedSpec | str, options: JobOptions) -> None:
    if options.stop and options.detach:
        raise ConfigError(
            "--stop cannot be combined with --detach",
            why="the job goes on after this program exits",
            fix="omit one of them\nor end the cluster when it is idle: --start --autostop 10m",
        )
    if isinstance(cluster, str) and (options.start or options.stop):
        raise ConfigError(f"--start and --stop need a cluster's name or file, not {cluster}")
