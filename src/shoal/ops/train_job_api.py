"""Runs the program of a training job as a Ray job, through the API of any cluster's dashboard at
`http://HOST:PORT`. Needs no Ray on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import secrets
import zipfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from shoal.bootstrap.package_upload import package_archive
from shoal.core.clock import SystemClock
from shoal.core.errors import ConfigError
from shoal.jobs.client import RayJobClient, token_from_env
from shoal.jobs.follow import JobFollower
from shoal.remote.command_output import CommandOutput
from shoal.remote.runner import Completed, OnLine, quote
from shoal.train.job.job_spec import CODE_FILE, JOB_FILE, JobSpec

_FILES = "files"


class RayJobApi:
    """The code of the user is in a directory of the package that Ray unpacks, not at its top: there
    a `code.py` would hide the module of that name from Ray itself."""

    is_here = False
    directory = "~/.shoal/train"

    def __init__(self, address: str) -> None:
        self._client = RayJobClient(address, token_from_env())
        self._files: dict[str, bytes] = {}

    async def send(self, job: JobSpec, archive: bytes) -> str:
        self._files = {
            f"{_FILES}/{JOB_FILE}": job.to_json().encode(),
            f"{_FILES}/{CODE_FILE}": archive,
        }
        return _FILES

    async def run(
        self, arguments: Sequence[str], on_line: OnLine, timeout: float | None = None
    ) -> Completed:
        working_dir = await self._upload()
        options = quote([*arguments, "--directory", self.directory])
        id = await self._client.submit(
            f"python -m shoal.train.job {options}",
            f"shoal-train-{secrets.token_hex(4)}",
            runtime_env={"working_dir": working_dir},
        )
        return await asyncio.wait_for(self._follow(id, on_line), timeout)

    async def fetch_output(self, job: str, target: Path) -> None:
        raise ConfigError(
            "--output is not supported for an http:// address",
            fix="use the name of the cluster, or its ray:// address",
        )

    async def _follow(self, id: str, on_line: OnLine) -> Completed:
        output = CommandOutput(on_line)
        follower = JobFollower(
            self._connect, id, lambda chunk: output.feed(chunk, "stdout"), SystemClock()
        )
        job = await follower.follow()
        output.finish("stdout")
        return Completed(job.status_code, output.tail)

    @contextlib.asynccontextmanager
    async def _connect(self) -> AsyncIterator[RayJobClient]:
        yield self._client

    async def _upload(self) -> str:
        """Upload Shoal and the files of the job as one package, unless it is there already."""
        content = await asyncio.to_thread(self._package)
        name = f"_ray_pkg_{hashlib.sha256(content).hexdigest()[:16]}.zip"
        return await self._client.put_package(name, content)

    def _package(self) -> bytes:
        buffer = io.BytesIO(package_archive().content)
        with zipfile.ZipFile(buffer, "a", zipfile.ZIP_DEFLATED) as package:
            for name, content in self._files.items():
                package.writestr(zipfile.ZipInfo(name), content)
        return buffer.getvalue()
