"""The files of a sweep on its head, and the commands that read and write them there."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from shoal.bootstrap.package_upload import upload_package
from shoal.cluster.handle import ClusterHandle
from shoal.core.errors import ShoalError
from shoal.jobs.sweep.journal import RUNS
from shoal.jobs.sweep.sweep_spec import SPEC_FILE, run_name
from shoal.ops.context import Context
from shoal.ray_runtime.ray_start import RayStart
from shoal.remote.runner import Runner, Stream, quote
from shoal.spec.cluster_spec import ClusterSpec

_log = logging.getLogger(__name__)

_ON_HEAD = ".shoal/sweeps"
_SECONDS = 60.0
_FETCH_SECONDS = 3600.0
# Isolated: a module of the user's code must not take the place of one that the driver needs.
_DRIVER = "import sys; sys.path.{add}; from shoal.jobs.sweep.__main__ import main; main()"

OnEntry = Callable[[dict[str, Any]], None]


class SweepHead:
    """One sweep on the head of a cluster. `directory` is relative to the home directory there."""

    def __init__(self, ctx: Context, spec: ClusterSpec, sweep: str) -> None:
        self._cluster = ClusterHandle.of(ctx, spec)
        self._is_here = self._cluster.capabilities.shares_this_machine
        self.directory = f"{_ON_HEAD}/{sweep}"
        if self._is_here:
            self.directory = str(ctx.state_directory / "sweeps" / spec.cluster_name / sweep)

    async def write_spec(self, content: str) -> None:
        directory, file = quote([self.directory]), quote([f"{self.directory}/{SPEC_FILE}"])
        await self._run(
            f"mkdir -p {directory} && cat > {file}.new && mv {file}.new {file}",
            "could not write the sweep to the head",
            stdin=content.encode(),
        )

    async def entrypoint(self, attempt: int) -> str:
        """The command of the Ray job, as shell text. Uploads Shoal if the head needs it."""
        arguments = quote(["drive", self.directory, "--attempt", str(attempt)])
        if self._is_here:
            add = f"append({str(Path(__file__).parents[2])!r})"
            return f"python -I -c {quote([_DRIVER.format(add=add)])} {arguments}"
        runner, start = await self._head()
        package = await upload_package(runner, start)
        code = quote([_DRIVER.format(add="insert(0, sys.argv.pop(1))")])
        return f'python -I -c {code} "$HOME/{package.directory}" {arguments}'

    async def follow(self, after: int, attempt: int, on_entry: OnEntry) -> None:
        """Pass on the entries of the journal and the progress until the driver has ended."""
        runner, start = await self._head()
        arguments = ["follow", self.directory, "--after", str(after), "--attempt", str(attempt)]
        command = f"{start.python} -m shoal.jobs.sweep {quote(arguments)}"
        if not self._is_here:
            package = await upload_package(runner, start)
            command = f"{package.python_path}\n{command}"
        rest = b""

        def take(chunk: bytes, stream: Stream) -> None:
            nonlocal rest
            if stream == "stdout":
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    _take_line(line, on_entry)

        done = await runner.run(
            start.with_python(command), env=start.session_env(), on_bytes=take, skip_profile=True
        )
        if not done.ok:
            raise ShoalError("could not follow the sweep", output=done.tail, node="head")

    async def fetch(self, runs: Sequence[int], target: IO[bytes]) -> None:
        """Copy the directories of these runs into a tar archive."""
        names = [run_name(number) for number in runs]

        def take(chunk: bytes, stream: Stream) -> None:
            if stream == "stdout":
                target.write(chunk)

        command = quote(["tar", "-C", f"{self.directory}/{RUNS}", "-cf", "-", *names])
        await self._run(command, "could not fetch results", on_bytes=take, timeout=_FETCH_SECONDS)

    async def remove(self) -> None:
        """Delete the files of the sweep, once all results are on the laptop."""
        await self._run(quote(["rm", "-rf", self.directory]), "could not delete the sweep's files")

    async def _run(self, command: str, what: str, timeout: float = _SECONDS, **more: Any) -> None:
        runner, _ = await self._head()
        try:
            done = await runner.run(command, timeout=timeout, skip_profile=True, **more)
        except TimeoutError:
            raise ShoalError(what, why=f"not within {timeout:g} s", node="head") from None
        if not done.ok:
            raise ShoalError(what, output=done.tail, node="head")

    async def _head(self) -> tuple[Runner, RayStart]:
        head = await self._cluster.head()
        return self._cluster.node_runner(head), self._cluster.ray_start(head, head)


def _take_line(line: bytes, on_entry: OnEntry) -> None:
    try:
        entry = json.loads(line)
    except ValueError:
        _log.info("head: %s", line.decode(errors="replace"))
        return
    if isinstance(entry, dict):
        on_entry(entry)
