"""What runs on the clusters, for the page: jobs, sweeps and trainings, and logs that follow."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from aiohttp import web

from shoal.core.concurrency import TtlCache
from shoal.core.errors import NotFoundError, ShoalError
from shoal.jobs.client import RayJob
from shoal.jobs.sweep.journal import OUTPUT_FILE, RUNS
from shoal.jobs.sweep.results import SweepDirectory
from shoal.jobs.sweep.sweep_spec import run_name
from shoal.jobs.sweep.table import metric_names, parameter_names, sorted_results
from shoal.ops import jobs, known_clusters, logs, sweep_registry, training_records
from shoal.ops.context import Context

_log = logging.getLogger(__name__)

_CACHE_SECONDS = 3.0
_MAX_LOG_BYTES = 1_000_000
_LOG_LINES = 400


class Workloads:
    """Asks a cluster only while a page shows its work; several pages share the answer."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._cache = TtlCache(ctx.clock, _CACHE_SECONDS)

    async def jobs(self, request: web.Request) -> web.Response:
        """The Ray jobs of a cluster, the newest first."""
        cluster = request.match_info["cluster"]

        async def load() -> list[RayJob]:
            return await jobs.list_jobs(self._ctx, known_clusters.load_recorded(self._ctx, cluster))

        listed = await self._cache.get_or_load(f"jobs/{cluster}", load)
        return web.json_response([_job_json(job) for job in reversed(listed)])

    async def job_log(self, request: web.Request) -> web.StreamResponse:
        """What a job prints, until it ends."""
        spec = known_clusters.load_recorded(self._ctx, request.match_info["cluster"])
        id = request.match_info["id"]
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        await jobs.status(self._ctx, spec, id)  # an unknown job is an error, not an empty log

        async def follow() -> None:
            try:
                await jobs.follow(self._ctx, spec, id, queue.put_nowait)
            finally:
                queue.put_nowait(None)

        following = asyncio.ensure_future(follow())

        async def chunks() -> AsyncIterator[bytes]:
            while (chunk := await queue.get()) is not None:
                yield chunk
            await following  # an error that ended it

        try:
            return await _text_stream(request, chunks())
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def trainings(self, request: web.Request) -> web.Response:
        """The training jobs of a cluster, the newest first."""
        cluster = request.match_info["cluster"]

        async def load() -> list[dict[str, Any]]:
            spec = known_clusters.load_recorded(self._ctx, cluster)
            return await training_records.list_trainings(self._ctx, spec)

        return web.json_response(await self._cache.get_or_load(f"trainings/{cluster}", load))

    async def training(self, request: web.Request) -> web.Response:
        """The journal of one training."""
        spec = known_clusters.load_recorded(self._ctx, request.match_info["cluster"])
        job = request.match_info["id"]
        return web.json_response(await training_records.read_training(self._ctx, spec, job))

    async def training_log(self, request: web.Request) -> web.Response:
        spec = known_clusters.load_recorded(self._ctx, request.match_info["cluster"])
        job = request.match_info["id"]
        text = await training_records.read_training_log(self._ctx, spec, job)
        return web.Response(text=text[-_MAX_LOG_BYTES:])

    async def node_log(self, request: web.Request) -> web.Response:
        """The end of a node's logs, also of one that is gone."""
        spec = known_clusters.load_recorded(self._ctx, request.match_info["cluster"])
        node = request.query.get("node") or None
        lines = await logs.read_logs(self._ctx, spec, node, lines=_LOG_LINES)
        return web.Response(text="\n".join(lines)[-_MAX_LOG_BYTES:])

    async def sweeps(self, request: web.Request) -> web.Response:
        """The sweeps that were started on this machine, the newest first."""
        return web.json_response(await asyncio.to_thread(self._list_sweeps))

    async def sweep(self, request: web.Request) -> web.Response:
        """The results of one sweep."""
        path = self._sweep_path(request.match_info["id"])
        return web.json_response(await asyncio.to_thread(_sweep_json, path))

    async def run_log(self, request: web.Request) -> web.Response:
        """What one run of a sweep printed."""
        path = self._sweep_path(request.match_info["id"])
        run = request.match_info["run"]
        if not run.isdigit():
            raise NotFoundError(f"no run {run}")
        file = path / RUNS / run_name(int(run)) / OUTPUT_FILE
        if not file.is_file():
            raise NotFoundError(f"the output of run {run} has not arrived yet")
        content = await asyncio.to_thread(file.read_bytes)
        return web.Response(text=content[-_MAX_LOG_BYTES:].decode(errors="replace"))

    def _list_sweeps(self) -> list[dict[str, Any]]:
        return [_sweep_summary(path) for path in sweep_registry.known_directories(self._ctx)]

    def _sweep_path(self, id: str) -> Path:
        """Only a directory that is known here, whatever a request says."""
        for path in sweep_registry.known_directories(self._ctx):
            if SweepDirectory(path).load().id == id:
                return path
        raise NotFoundError(f"no sweep {id} on this machine")


def _job_json(job: RayJob) -> dict[str, Any]:
    return {
        "id": job.id,
        "status": job.status,
        "entrypoint": job.entrypoint,
        "message": job.message,
        "exit_code": job.exit_code,
        "started": job.started,
        "ended": job.ended,
    }


def _sweep_summary(path: Path) -> dict[str, Any]:
    directory = SweepDirectory(path)
    spec, state = directory.load(), directory.state()
    results = directory.results().values()
    return {
        "id": spec.id,
        "script": spec.script,
        "directory": str(path),
        "cluster": state.cluster,
        "job": state.job,
        "created": spec.created,
        "runs": len(spec.runs),
        "done": len(results),
        "failed": sum(result["status"] != "ok" for result in results),
    }


def _sweep_json(path: Path) -> dict[str, Any]:
    results = sorted_results(list(SweepDirectory(path).results().values()), "run", descending=False)
    keys = ("run", "params", "status", "seconds", "metrics", "why")
    return {
        **_sweep_summary(path),
        "parameters": parameter_names(results),
        "metrics": metric_names(results),
        "results": [{key: result.get(key) for key in keys} for result in results],
    }


async def _text_stream(request: web.Request, chunks: AsyncIterator[bytes]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8"})
    await response.prepare(request)
    try:
        async for chunk in chunks:
            await response.write(chunk)
    except ConnectionError as error:
        _log.debug("the page was closed: %s", error)
    except ShoalError as error:  # too late for another status
        await response.write(f"\n{error}\n".encode())
    return response
