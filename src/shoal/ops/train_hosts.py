"""Where the program of a training job runs: on the head of a cluster, or for a cluster that is
known by its address only, here as a Ray client."""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from shoal.bootstrap.package_upload import upload_package
from shoal.cluster.handle import ClusterHandle
from shoal.core.errors import ConfigError
from shoal.ops.context import Context
from shoal.remote.local_runner import LocalRunner
from shoal.remote.runner import Completed, OnLine, quote
from shoal.spec.cluster_spec import ClusterSpec
from shoal.train.job.job_spec import CODE_FILE, JOB_FILE, OUTPUT_FILE, JobSpec

_ON_NODES = "~/.shoal/train"
_FETCH_SECONDS = 600.0


class JobHost(Protocol):
    """`directory` is where the head keeps the files of jobs. `is_here` if the whole cluster runs on
    this machine, with this Python."""

    directory: str
    is_here: bool

    async def send(self, job: JobSpec, archive: bytes) -> str:
        """Put the spec and the code where the program finds them; returns where that is."""
        ...

    async def run(
        self, arguments: Sequence[str], on_line: OnLine, timeout: float | None = None
    ) -> Completed:
        """Run `python -m shoal.train.job` with these arguments."""
        ...

    async def fetch_output(self, job: str, target: Path) -> None:
        """Copy the archive of what the script saved to `target`, if there is one."""
        ...


class ClusterHead:
    """The head of a cluster that Shoal runs."""

    def __init__(self, ctx: Context, spec: ClusterSpec) -> None:
        self._cluster = ClusterHandle.of(ctx, spec)
        self.is_here = self._cluster.capabilities.shares_this_machine
        self.directory = _ON_NODES
        if self.is_here:
            self.directory = str(ctx.state_directory / "train" / spec.cluster_name)

    async def send(self, job: JobSpec, archive: bytes) -> str:
        path = f"{self.directory}/{job.id}"
        if self.is_here:
            await asyncio.to_thread(_write_files, Path(path), job, archive)
            return path
        temporary = Path(tempfile.mkdtemp())
        try:
            await asyncio.to_thread(_write_files, temporary, job, archive)
            head = await self._cluster.head()
            await self._cluster.node_runner(head).put(temporary, f"{path}/")
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return path

    async def run(
        self, arguments: Sequence[str], on_line: OnLine, timeout: float | None = None
    ) -> Completed:
        head = await self._cluster.head()
        start = self._cluster.ray_start(head, head)
        runner = self._cluster.node_runner(head)
        options = quote([*arguments, "--directory", self.directory])
        command = f"{start.python} -m shoal.train.job {options}"
        if not self.is_here:
            package = await upload_package(runner, start)
            command = f"{package.python_path}\n{command} --ship-package"
        return await runner.run(
            start.with_python(command), env=start.session_env(), on_line=on_line, timeout=timeout
        )

    async def fetch_output(self, job: str, target: Path) -> None:
        path = f"{self.directory}/{job}/{OUTPUT_FILE}"
        if self.is_here:
            await asyncio.to_thread(shutil.copyfile, path, target)
        else:
            head = await self._cluster.head()
            await self._cluster.node_runner(head).get(path, target)


class RayClient:
    """Any Ray cluster that listens for Ray clients at `ray://HOST:PORT`."""

    is_here = False
    directory = _ON_NODES

    def __init__(self, address: str) -> None:
        if importlib.util.find_spec("ray") is None:
            raise ConfigError(
                f"{address} needs Ray on this machine",
                why="it is the address of a Ray client server",
                fix="pip install 'shoal[embedded]'",
            )
        self._address = address
        self._temporary = tempfile.TemporaryDirectory(prefix="shoal-train-")

    async def send(self, job: JobSpec, archive: bytes) -> str:
        path = Path(self._temporary.name) / job.id
        await asyncio.to_thread(_write_files, path, job, archive)
        return str(path)

    async def run(
        self, arguments: Sequence[str], on_line: OnLine, timeout: float | None = None
    ) -> Completed:
        options = ["--directory", self.directory, "--address", self._address, "--ship-package"]
        command = quote([sys.executable, "-m", "shoal.train.job", *arguments, *options])
        runner = LocalRunner(Path(self._temporary.name), {})
        return await runner.run(command, on_line=on_line, timeout=timeout)

    async def fetch_output(self, job: str, target: Path) -> None:
        arguments = ["output", job, "--to", str(target)]
        await self.run(arguments, lambda line, stream: None, _FETCH_SECONDS)


def job_host(ctx: Context, cluster: ClusterSpec | str) -> JobHost:
    """The host for a cluster, or for the address of one."""
    if isinstance(cluster, ClusterSpec):
        return ClusterHead(ctx, cluster)
    if cluster.startswith(("http://", "https://")):
        from shoal.ops.train_job_api import RayJobApi

        return RayJobApi(cluster)
    return RayClient(cluster)


def is_address(cluster: str | None) -> bool:
    """Whether -u names a Ray cluster by its address."""
    return cluster is not None and cluster.startswith(("ray://", "http://", "https://"))


def _write_files(target: Path, job: JobSpec, archive: bytes) -> None:
    target.mkdir(parents=True, exist_ok=True)
    (target / JOB_FILE).write_text(job.to_json())
    (target / CODE_FILE).write_bytes(archive)
