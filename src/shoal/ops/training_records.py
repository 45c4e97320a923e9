"""Reads the files of training jobs on a cluster's head: which there are, and what happened to each,
with the progress over time."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

from shoal.cluster.handle import ClusterHandle
from shoal.core.errors import NotFoundError, UnreachableError
from shoal.ops.context import Context
from shoal.ops.train import TrainingJobs
from shoal.ops.train_hosts import job_host
from shoal.remote.runner import capture, quote
from shoal.spec.cluster_spec import ClusterSpec
from shoal.train.job import records
from shoal.train.job.job_spec import JOURNAL_FILE, OUTPUT_LOG

_READ_SECONDS = 30.0
# Of each file, from its end: more than a page can show.
_MAX_BYTES = 4_000_000
_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


async def list_trainings(ctx: Context, spec: ClusterSpec) -> list[dict[str, Any]]:
    """The training jobs of a cluster, the newest first, with state and last progress."""
    host = job_host(ctx, spec)
    if host.is_here:  # their files are on this machine
        return await asyncio.to_thread(records.list_jobs, Path(host.directory))
    return await TrainingJobs(ctx, spec).jobs()


async def read_training(ctx: Context, spec: ClusterSpec, job: str) -> list[dict[str, Any]]:
    """The journal of a training job: progress, and what changed its workers and why."""
    entries = []
    for line in (await _tail(ctx, spec, job, JOURNAL_FILE)).splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue  # cut off at the start, or half written
        if isinstance(entry, dict) and "kind" in entry:
            entries.append(entry)
    return entries


async def read_training_log(ctx: Context, spec: ClusterSpec, job: str) -> str:
    """The end of what the script printed on rank 0."""
    return await _tail(ctx, spec, job, OUTPUT_LOG)


async def _tail(ctx: Context, spec: ClusterSpec, job: str, name: str) -> str:
    if not _JOB.fullmatch(job):
        raise NotFoundError(f"unknown job: {job}")
    cluster = ClusterHandle.of(ctx, spec)
    head = await cluster.head()
    directory = job_host(ctx, spec).directory
    # A leading `~` is for the head's shell to expand.
    home, _, rest = directory.partition("/") if directory.startswith("~/") else ("", "", directory)
    path = f"{home}/" if home else ""
    path += quote([f"{rest}/{job}/{name}"])
    command = f"[ ! -e {path} ] || tail -c {_MAX_BYTES} {path}"
    runner = cluster.node_runner(head)
    try:
        _, lines = await capture(runner, command, timeout=_READ_SECONDS, skip_profile=True)
    except TimeoutError:
        why = f"no reply within {_READ_SECONDS:.0f} s"
        raise UnreachableError("the head does not answer", why=why, node=head.name) from None
    return "\n".join(lines)
