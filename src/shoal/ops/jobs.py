"""Ray jobs on a cluster: submit a program with its code and environment, follow it, list and stop
jobs. A job runs on the cluster, so it goes on if this program ends."""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

from shoal.cluster.handle import ClusterHandle
from shoal.core.errors import ConfigError, ShoalError, UnreachableError
from shoal.core.events import JobSubmitted, Warned
from shoal.jobs.client import ENTRYPOINT_KEY, RayJob, RayJobClient, token_from_env
from shoal.jobs.code import Snapshot, snapshot
from shoal.jobs.connection import job_client
from shoal.jobs.environment import Environment
from shoal.jobs.environment import environment as read_environment
from shoal.jobs.follow import JobFollower
from shoal.jobs.package import Package
from shoal.ops.context import Context
from shoal.spec.cluster_spec import ClusterSpec

# Where a head keeps the records of its jobs.
JOBS_DIRECTORY = "~/.shoal/jobs"
_STOP_SECONDS = 60.0
_STOP_POLL_S = 0.25
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class JobError(ShoalError):
    """The job could not run its command to the end."""

    label = "job"


# A cluster by its spec, or the address of any Ray dashboard: http://HOST:PORT.
Cluster = ClusterSpec | str


@contextlib.asynccontextmanager
async def connect(ctx: Context, cluster: Cluster) -> AsyncIterator[RayJobClient]:
    """The job API of a cluster, for several requests over one connection."""
    if isinstance(cluster, str):
        yield RayJobClient(cluster, token_from_env())
        return
    async with job_client(ClusterHandle.of(ctx, cluster)) as client:
        yield client


async def submit(
    ctx: Context,
    cluster: Cluster,
    entrypoint: str,
    *,
    code: Path | Snapshot | None = None,
    environment: Path | Environment | None = None,
    env_vars: Mapping[str, str] | None = None,
    job_id: str = "",
    metadata: Mapping[str, str] | None = None,
    resources: Mapping[str, float] | None = None,
) -> str:
    """Start `entrypoint`, a shell command, as a Ray job and return its id.

    - `code`: the directory that is the working directory of the driver and of all workers.
    - `environment`: a requirements.txt, pyproject.toml or uv.lock; `python` in the entrypoint and
      in all workers has its packages.
    - `env_vars`: environment variables of the driver and of all workers.
    - `resources`: what the driver occupies, such as CPU; without any it runs on the head.
    """
    package = await asyncio.to_thread(make_package, ctx, code, environment)
    async with connect(ctx, cluster) as client:
        return await submit_package(
            ctx, cluster, client, entrypoint, package,
            env_vars=env_vars, job_id=job_id, metadata=metadata, resources=resources,
        )  # fmt: skip


def make_package(
    ctx: Context, code: Path | Snapshot | None, environment: Path | Environment | None
) -> Package | None:
    """The package of a job, with warnings about its code; None if there is nothing to send."""
    if code is None and environment is None:
        return None
    if isinstance(code, Path):
        code = snapshot(code)
    if isinstance(environment, Path):
        environment = read_environment(environment)
    if code is None:
        code = Snapshot(Path.cwd(), ())
    if code.shadowed:
        names = ", ".join(f"{name}.py" for name in code.shadowed)
        ctx.emit(
            Warned(
                f"{names} hides a module of Python's standard library",
                why="libraries that import it from there get yours; Ray itself does not",
                fix="rename it",
            )
        )
    if code.skipped:
        names = ", ".join(code.skipped[:5])
        ctx.emit(Warned("files with unusual names are not sent", why=names, fix="rename them"))
    return Package(code, environment)


async def upload(client: RayJobClient, package: Package) -> None:
    """Upload a package unless the cluster has it already."""
    if not await client.has_package(package.name):
        archive = await asyncio.to_thread(package.archive)
        await client.put_package(package.name, archive)


async def submit_package(
    ctx: Context,
    cluster: Cluster,
    client: RayJobClient,
    entrypoint: str,
    package: Package | None,
    *,
    env_vars: Mapping[str, str] | None = None,
    job_id: str = "",
    metadata: Mapping[str, str] | None = None,
    resources: Mapping[str, float] | None = None,
) -> str:
    """Like `submit`, over an open connection."""
    id = job_id or new_job_id()
    if not _ID.fullmatch(id):
        raise ConfigError(f"{id!r} is not a job id", fix="use letters, digits, '.', '_' and '-'")
    runtime_env: dict[str, object] = {}
    command = entrypoint
    if package is not None:
        await upload(client, package)
        runtime_env, command = package.runtime_env(), package.entrypoint(entrypoint)
    if variables := {**cluster_env(ctx, cluster), **(env_vars or {})}:
        runtime_env["env_vars"] = variables
    data = {ENTRYPOINT_KEY: entrypoint, **(metadata or {})}
    id = await client.submit(
        command, id, runtime_env=runtime_env, metadata=data, resources=resources or {}
    )
    ctx.emit(JobSubmitted(id))
    return id


def new_job_id() -> str:
    return f"job-{secrets.token_hex(4)}"


async def status(ctx: Context, cluster: Cluster, id: str) -> RayJob:
    """A job as Ray reports it now."""
    async with connect(ctx, cluster) as client:
        return await client.job(id)


async def list_jobs(ctx: Context, cluster: Cluster) -> list[RayJob]:
    """The jobs that were submitted to the cluster since its head started, the oldest first."""
    async with connect(ctx, cluster) as client:
        return await client.jobs()


async def follow(ctx: Context, cluster: Cluster, id: str, write: Callable[[bytes], None]) -> RayJob:
    """Write what the job has printed and prints, and return when it has ended. A lost connection is
    opened again; output goes on where it stopped."""

    def on_lost(error: UnreachableError) -> None:
        ctx.emit(Warned("lost the connection; trying again", why=str(error)))

    follower = JobFollower(lambda: connect(ctx, cluster), id, write, ctx.clock, on_lost=on_lost)
    try:
        return await follower.follow()
    except UnreachableError as error:
        raise ShoalError(
            f"lost the connection; job {id} runs on",
            why=str(error),
            fix=f"follow it: shoal job logs CLUSTER -f {id}",
        ) from error


async def logs(ctx: Context, cluster: Cluster, id: str, write: Callable[[bytes], None]) -> RayJob:
    """Write what the job has printed so far."""
    async with connect(ctx, cluster) as client:
        job = await client.job(id)
        await JobFollower(lambda: connect(ctx, cluster), id, write, ctx.clock).print_log(
            client, job
        )
        return job


async def stop(ctx: Context, cluster: Cluster, id: str) -> RayJob:
    """End a job, and return when it has ended."""
    async with connect(ctx, cluster) as client:
        await client.stop(id)
        deadline = ctx.clock.monotonic() + _STOP_SECONDS
        while not (job := await client.job(id)).has_ended:
            if ctx.clock.monotonic() > deadline:
                raise ShoalError(f"job {id} did not end within {_STOP_SECONDS:g} s")
            await ctx.clock.sleep(_STOP_POLL_S)
        return job


def cluster_env(ctx: Context, cluster: Cluster) -> dict[str, str]:
    """The variables that the programs of a job need on this cluster."""
    if isinstance(cluster, str):
        return {}
    handle = ClusterHandle.of(ctx, cluster)
    if not handle.capabilities.shares_this_machine:
        return {}
    return {
        "SHOAL_ENVIRONMENTS": str(ctx.home / "environments"),
        "SHOAL_JOBS_DIRECTORY": str(local_jobs_directory(ctx, cluster)),
    }


def local_jobs_directory(ctx: Context, spec: ClusterSpec) -> Path:
    """Where a cluster on this machine keeps the records of its jobs."""
    return ctx.state_directory / "jobs" / spec.cluster_name
