"""Runs a training script on a cluster: ships its code, starts the job, and follows it. The job
runs on the cluster, so it goes on if this program ends."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.core.errors import ConfigError, ShoalError, UnreachableError
from shoal.core.events import Warned
from shoal.ops.context import Context
from shoal.ops.ephemeral_cluster import ephemeral_cluster
from shoal.ops.train_follower import Follower
from shoal.ops.train_hosts import job_host
from shoal.ops.train_price import worker_prices
from shoal.spec.cluster_spec import ClusterSpec
from shoal.train.adaptdl_package import adaptdl_package
from shoal.train.job.code_archive import pack
from shoal.train.job.job_events import TrainNote
from shoal.train.job.job_spec import AUTO, AUTO_GPUS, OUTPUT_FILE, RESTART, JobSpec
from shoal.train.job.script_kind import rescale_mode
from shoal.train.job.sizing import TIME, Prices

_QUERY_SECONDS = 60.0


class ScriptError(ShoalError):
    """The script itself is wrong."""

    label = "script"


@dataclass(frozen=True)
class TrainOptions:
    """`gpus` is AUTO_GPUS for one where the cluster has GPUs. `script` is relative to
    `working_dir`, whose default is the script's own directory."""

    script: str
    arguments: tuple[str, ...] = ()
    max_workers: int = 1
    min_workers: int = 1
    cpus: float = 1.0
    gpus: float = AUTO_GPUS
    working_dir: Path | None = None
    checkpoint_dir: str = ""
    share: str = ""
    output: Path | None = None
    resume: str = ""
    detach: bool = False
    checkpoint_timeout_s: float = 120.0
    rescale_timeout_s: float = 60.0
    rescale_mode: str = AUTO
    objective: str = TIME


@dataclass(frozen=True)
class Code:
    """A checked script and the directory that is shipped with it."""

    directory: Path
    script: str  # relative to it


async def train(
    ctx: Context, cluster: ClusterSpec | str, options: TrainOptions, *, start: bool, stop: bool
) -> int:
    """Run the script on the cluster and return its status. Detached: return once it has started."""
    code = check_code(options)
    if stop and options.detach:
        raise ConfigError(
            "--stop cannot be combined with --detach",
            why="the job goes on after this program exits",
            fix="omit one of them",
        )
    jobs = TrainingJobs(ctx, cluster)
    if not isinstance(cluster, ClusterSpec):
        if start or stop:
            raise ConfigError(f"--start and --stop need a cluster's name or file, not {cluster}")
        return await jobs.run(options, code)
    if jobs.is_here:
        _check_syntax(code)  # the script runs with this Python
    _check_gpus(cluster, options)
    async with ephemeral_cluster(ctx, cluster, start=start, stop=stop):
        return await jobs.run(options, code)


def check_code(options: TrainOptions) -> Code:
    """The script and what is shipped with it. Raises `ConfigError` if there is no such script."""
    given = Path(options.script)
    directory = options.working_dir
    if directory is not None and not directory.is_dir():
        raise ConfigError(f"--working-dir {directory} is not a directory")
    path = given if directory is None else directory / given
    if not path.is_file():
        raise ConfigError(
            f"script {path} not found",
            why="it is a directory" if path.is_dir() else "no such file",
            fix="pass the path of a local Python file"
            + (", relative to --working-dir" if directory is not None else ""),
        )
    root = (directory or path.parent).resolve()
    try:
        return Code(root, str(path.resolve().relative_to(root)))
    except ValueError:
        raise ConfigError(
            f"script {path} is not in --working-dir {directory}",
            fix="pass its path relative to --working-dir",
        ) from None


class TrainingJobs:
    """The training jobs of one cluster, which is given by its spec or by its address."""

    def __init__(self, ctx: Context, cluster: ClusterSpec | str) -> None:
        self._ctx = ctx
        self._host = job_host(ctx, cluster)
        self._cluster = cluster

    @property
    def is_here(self) -> bool:
        return self._host.is_here

    async def run(self, options: TrainOptions, code: Code) -> int:
        """Start a job, and follow it unless it is detached. Returns its status."""
        job = await self._job_spec(options, code)
        package = adaptdl_package()
        archive = await asyncio.to_thread(pack, code.directory, [package] if package else [])
        files = await self._host.send(job, archive)
        follower = self._follower()
        try:
            arguments = ["run", files, *(["--detach"] if options.detach else [])]
            done = await self._host.run(arguments, follower.line)
        except asyncio.CancelledError:
            self._ctx.emit(TrainNote(f"stopping job {job.id}; --resume {job.id} continues it"))
            arguments = ["stop", job.id, "--after", str(follower.next)]
            with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
                seconds = job.checkpoint_timeout_s + _QUERY_SECONDS
                await self._host.run(arguments, follower.line, seconds)
            raise
        except UnreachableError as error:
            what = f"lost the connection; job {job.id} runs on"
            fix = f"follow it: shoal train logs -f {job.id}"
            if not follower.started:
                what = f"no connection while job {job.id} was started"
                fix = "try again; if it was started nevertheless, shoal train list shows it"
            raise ShoalError(what, why=str(error), fix=fix) from error
        if options.output is not None and not options.detach:
            await self._fetch_output(job.id, options.output)
        return follower.status(done)

    async def follow(self, job: str) -> int:
        follower = self._follower()
        return follower.status(await self._host.run(["follow", job], follower.line))

    async def stop(self, job: str) -> None:
        """Returns when the job has ended."""
        follower = self._follower()
        done = await self._host.run(["stop", job], follower.line)
        if follower.end is None:
            follower.status(done)

    async def resize(self, job: str, workers: int) -> None:
        follower = self._follower()
        arguments = ["resize", job, str(workers)]
        follower.status(await self._host.run(arguments, follower.line, _QUERY_SECONDS))

    async def jobs(self) -> list[dict[str, Any]]:
        return await self._query("list")

    async def explain(self, job: str) -> list[dict[str, Any]]:
        """The entries of the journal that explain the job's changes."""
        return await self._query("explain", job)

    async def logs(self, job: str, worker: str = "") -> None:
        """Emit what the script has printed so far."""
        await self._query("logs", job, *(["--worker", worker] if worker else []))

    async def _query(self, *arguments: str) -> list[dict[str, Any]]:
        follower = self._follower()
        follower.status(await self._host.run(arguments, follower.line, _QUERY_SECONDS))
        return follower.results

    async def _job_spec(self, options: TrainOptions, code: Code) -> JobSpec:
        id = options.resume or _new_id(code.script)
        if options.resume:
            await self._check_resumable(id)
        mode = options.rescale_mode
        if mode == AUTO:
            mode = rescale_mode(code.directory, code.script)
        prices = Prices()
        if isinstance(self._cluster, ClusterSpec):
            resources = {"CPU": options.cpus, "GPU": max(0.0, options.gpus)}
            prices = worker_prices(self._cluster, resources)
        checkpoint_dir = options.checkpoint_dir
        if not checkpoint_dir and self.is_here:
            checkpoint_dir = f"{self._host.directory}/{id}/checkpoints"
        if not checkpoint_dir:
            when = "if all workers are lost at once"
            if mode == RESTART:
                when = "unless the script loads its own checkpoint, whenever workers come or go"
            self._ctx.emit(
                Warned(
                    "no --checkpoint-dir",
                    why=f"{when}, training starts again from the beginning",
                    fix="add --checkpoint-dir with a shared path, or a URL such as s3://BUCKET/DIR",
                )
            )
        return JobSpec(
            id=id,
            resumes=bool(options.resume),
            script=code.script,
            arguments=options.arguments,
            max_workers=options.max_workers,
            min_workers=options.min_workers,
            cpus=options.cpus,
            gpus=options.gpus,
            directory=self._host.directory,
            checkpoint_dir=checkpoint_dir,
            share=options.share or (f"{self._host.directory}/{id}/share" if self.is_here else ""),
            checkpoint_timeout_s=options.checkpoint_timeout_s,
            rescale_timeout_s=options.rescale_timeout_s,
            rescale_mode=mode,
            objective=options.objective,
            worker_price=prices.per_worker,
            other_price=prices.others,
            collects_output=options.output is not None,
            created=self._ctx.clock.now(),
        )

    async def _check_resumable(self, job: str) -> None:
        states = {known["job"]: known["state"] for known in await self.jobs()}
        if job not in states:
            raise ConfigError(f"unknown job: {job}", fix="list the jobs: shoal train list")
        if states[job] == "running":
            fix = f"stop it first: shoal train stop {job}"
            raise ConfigError(f"job {job} is running", fix=fix)

    async def _fetch_output(self, job: str, target: Path) -> None:
        with tempfile.TemporaryDirectory() as temporary:
            local = Path(temporary) / OUTPUT_FILE
            try:
                await self._host.fetch_output(job, local)
                count = await asyncio.to_thread(_unpack, local, target)
            except (OSError, ShoalError) as error:
                self._ctx.emit(Warned("could not fetch what the script saved", why=str(error)))
                return
        self._ctx.emit(TrainNote(f"{count} file{'s' if count != 1 else ''} saved in {target}"))

    def _follower(self) -> Follower:
        return Follower(self._ctx.emit)


def _check_syntax(code: Code) -> None:
    path = code.directory / code.script
    try:
        compile(path.read_bytes(), str(path), "exec")
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        text = (getattr(error, "text", None) or "").rstrip()
        raise ScriptError(
            f"{code.script} has a syntax error" + (f" in line {line}" if line else ""),
            why=getattr(error, "msg", str(error)),
            output=[text] if text else (),
        ) from None


def _check_gpus(spec: ClusterSpec, options: TrainOptions) -> None:
    """Raise `ConfigError` if no node type of the cluster can have the requested GPUs."""
    if options.gpus <= 0:
        return
    known = [t.resources.get("GPU") for t in spec.node_types.values() if t.resources]
    if known and all(count is not None and count < options.gpus for count in known):
        raise ConfigError(
            f"no node of {spec.cluster_name} has {options.gpus:g} GPUs for a worker",
            why="its node types have fewer",
            fix="use a cluster with GPUs\nor train without: --gpus 0",
        )


def _unpack(archive: Path, target: Path) -> int:
    with zipfile.ZipFile(archive) as files:
        files.extractall(target)
        return len(files.namelist())


def _new_id(script: str) -> str:
    return f"{Path(script).stem}-{secrets.token_hex(3)}"
