"""Restores the code of a job from the record that its head keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shoal.cluster.handle import ClusterHandle
from shoal.core.errors import NotFoundError, ShoalError
from shoal.jobs.restore import restore_tree
from shoal.ops.context import Context
from shoal.ops.jobs import JOBS_DIRECTORY, local_jobs_directory
from shoal.remote.runner import Stream, quote
from shoal.remote.scripts import read_script
from shoal.spec.cluster_spec import ClusterSpec

_READ_SECONDS = 600.0
_NO_RECORD = 3


async def restore(ctx: Context, spec: ClusterSpec, id: str, target: Path) -> dict[str, Any]:
    """Write the code of a job to a new directory, and return the record of its run: `commit`,
    `branch`, `dirty`, `diff`, `entrypoint`, `python`, and with an environment its `packages`."""
    cluster = ClusterHandle.of(ctx, spec)
    head = await cluster.head()
    start, runner = cluster.ray_start(head, head), cluster.node_runner(head)
    directory = JOBS_DIRECTORY
    if cluster.capabilities.shares_this_machine:
        directory = str(local_jobs_directory(ctx, spec))
    script = read_script("shoal.jobs.scripts", "read_run.py")
    command = f"{start.python} -I -c {quote([script, directory, id])}"
    chunks: list[bytes] = []

    def collect(chunk: bytes, stream: Stream) -> None:
        if stream == "stdout":
            chunks.append(chunk)

    done = await runner.run(
        start.with_python(command), on_bytes=collect, timeout=_READ_SECONDS, skip_profile=True
    )
    if done.code == _NO_RECORD:
        raise NotFoundError(
            f"the head has no code of job {id}",
            why="it was submitted without --code, did not start, or ran on another node (--cpus)",
            fix="list the jobs: shoal job list CLUSTER",
        )
    if not done.ok:
        raise ShoalError(f"could not read the code of job {id}", output=done.tail, node="head")
    return await asyncio.to_thread(restore_tree, b"".join(chunks), target)


def description(record: dict[str, Any]) -> Iterator[str]:
    """The record of a run as lines for people."""
    commit = record["commit"] or "none"
    if record["dirty"] and record["commit"]:
        commit += " and uncommitted changes"
    yield f"command  {record['entrypoint']}"
    yield f"commit   {commit}"
    if record["branch"]:
        yield f"branch   {record['branch']}"
    yield f"python   {record['python']}"
    if packages := record.get("packages"):
        yield f"packages {len(packages)} from {record['environment']['source']}"
