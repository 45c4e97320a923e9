"""Starts the Ray job of a sweep, or finds the one that runs, and follows it: fetches the results of
runs as they end, and starts another driver if the last one was lost."""

from __future__ import annotations

import asyncio
import logging
import secrets
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shoal.core.errors import NotFoundError, ShoalError, UnreachableError
from shoal.jobs.client import ENTRYPOINT_KEY, RayJob
from shoal.jobs.known_failures import known_failure
from shoal.jobs.sweep.journal import Result
from shoal.jobs.sweep.results import SweepDirectory
from shoal.jobs.sweep.sweep_events import (
    SweepEnded,
    SweepNote,
    SweepProgress,
    SweepRunEnded,
    SweepStarted,
)
from shoal.jobs.sweep.sweep_spec import SweepSpec
from shoal.ops import jobs
from shoal.ops.context import Context
from shoal.ops.sweep_head import SweepHead
from shoal.ops.sweep_price import SweepPrice
from shoal.spec.cluster_spec import ClusterSpec

_log = logging.getLogger(__name__)

_BATCH = 50
_RECONNECT_S = 1.0
# How long to try again after a lost connection: a laptop may be moved, or sleep for a while.
_PATIENCE_S = 900.0
# Drivers that were lost one after the other without a new result.
_MAX_LOST = 2
_LOG_LINES = 20


class SweepFollower:
    """One sweep, its local directory, and the cluster that it runs on."""

    def __init__(
        self,
        ctx: Context,
        cluster: ClusterSpec,
        directory: SweepDirectory,
        spec: SweepSpec,
        env_vars: Mapping[str, str],
    ) -> None:
        self._ctx = ctx
        self._cluster = cluster
        self._directory = directory
        self._spec = spec
        self._env_vars = env_vars
        self._results = directory.results()
        # The results that are being replaced.
        self._outdated: dict[int, Result] = {}
        self._head = SweepHead(ctx, cluster, spec.id)
        self._price = SweepPrice(ctx, cluster)
        self._position = 0
        self._stopped = ""
        self._received_at = 0.0
        # Drivers that were lost since the number of results was the first of these.
        self._lost = (-1, 0)

    @property
    def is_complete(self) -> bool:
        """Whether the results of all runs are in the directory."""
        return all(run.number in self._results for run in self._spec.runs)

    async def start(self, *, changed: bool, retry_failed: bool) -> None:
        """Start the Ray job, unless it runs. With `changed`, the one that runs has other runs."""
        await self._price.refresh()
        done = len(self._kept(retry_failed=retry_failed))
        self._ctx.emit(
            SweepStarted(
                self._spec.id, str(self._directory.path), len(self._spec.runs), done,
                self._spec.style, self._price.per_hour, self._price.max_per_hour(),
                self._price_at_time_limit(len(self._spec.runs) - done),
            )
        )  # fmt: skip
        was_started = bool(self._directory.state().job)

        async def start() -> None:
            job = await self._job()
            if job is not None and not job.has_ended:
                if not changed and not retry_failed:
                    self._ctx.emit(SweepNote("the sweep is running: following it"))
                    return
                await jobs.stop(self._ctx, self._cluster, job.id)
            await self._submit(retry_failed=retry_failed)

        await self._when_reachable(start, _PATIENCE_S if was_started else 0.0)

    async def follow(self, *, stops_cluster: bool) -> int:
        """Return when all results are here: 0 if no run has failed."""
        try:
            while not self.is_complete and not self._stopped:
                has_ended = await self._follow_driver()
                if not self._stopped and not (has_ended and self.is_complete):
                    await self._when_reachable(self._replace_driver, _PATIENCE_S)
        except asyncio.CancelledError:
            if not stops_cluster:
                self._ctx.emit(SweepNote(self._detached_note()))
            raise
        if not self._stopped:
            await self._clean_up()
        failed = sum(result["status"] != "ok" for result in self._results.values())
        self._ctx.emit(
            SweepEnded(str(self._directory.path), len(self._spec.runs), failed, self._price.cost())
        )
        if self._stopped:
            raise ShoalError(
                "the sweep was stopped",
                why=self._stopped,
                fix=f"continue it: shoal sweep resume {self._directory.path}",
            )
        return int(failed > 0)

    def _price_at_time_limit(self, runs: int) -> float | None:
        run = {"CPU": self._spec.cpus, "GPU": self._spec.gpus}
        return self._price.if_all_take(self._spec.time_limit_s, runs, run)

    def _kept(self, *, retry_failed: bool) -> dict[int, Result]:
        return {
            number: result
            for number, result in self._results.items()
            if result["status"] == "ok" or not retry_failed
        }

    async def _job(self) -> RayJob | None:
        """The Ray job of the sweep as this cluster knows it."""
        state = self._directory.state()
        if not state.job or state.cluster != self._cluster.cluster_name:
            return None
        try:
            return await jobs.status(self._ctx, self._cluster, state.job)
        except NotFoundError:
            return None  # the head or its Ray is another one

    async def _submit(self, *, retry_failed: bool = False) -> None:
        state = self._directory.state()
        attempt = state.attempt + 1
        kept = self._kept(retry_failed=retry_failed)
        self._outdated = {n: r for n, r in self._results.items() if n not in kept}
        self._results = kept
        spec = replace(self._spec, skip=tuple(sorted(kept)))
        if retry_failed:
            spec = replace(spec, repeat_failed=secrets.token_hex(4))
        self._spec = spec
        await self._head.write_spec(spec.to_json())
        entrypoint = await self._head.entrypoint(attempt)
        # On disk before the job exists: a program that is killed now finds it again.
        job = f"sweep-{spec.id}-{attempt}"
        self._directory.save_state(
            replace(state, cluster=self._cluster.cluster_name, job=job, attempt=attempt)
        )
        metadata = {"shoal_sweep": spec.id, ENTRYPOINT_KEY: f"shoal sweep {spec.script}"}
        await jobs.submit(
            self._ctx, self._cluster, entrypoint, code=Path(state.code),
            environment=Path(state.requirements) if state.requirements else None,
            env_vars=self._env_vars, job_id=job, metadata=metadata,
        )  # fmt: skip

    async def _follow_driver(self) -> bool:
        """Follow the driver of the latest attempt to its end. Returns False if it is gone. A lost
        connection is opened again."""
        lost_at: float | None = None
        while True:
            try:
                return await self._follow_once()
            except UnreachableError as error:
                now = self._ctx.clock.monotonic()
                if lost_at is None or self._received_at > lost_at:
                    lost_at = now
                    self._note(f"lost the connection, trying again: {error}", "warning")
                if now - lost_at > _PATIENCE_S:
                    raise ShoalError(
                        "lost the connection; the sweep goes on",
                        why=str(error),
                        fix=f"follow it: shoal sweep resume {self._directory.path}",
                    ) from error
                await self._ctx.clock.sleep(_RECONNECT_S)

    async def _follow_once(self) -> bool:
        self._received_at = self._ctx.clock.monotonic()
        arrived: asyncio.Queue[Result] = asyncio.Queue()
        has_ended = False

        def take(entry: dict[str, Any]) -> None:
            nonlocal has_ended
            self._received_at = self._ctx.clock.monotonic()
            event = entry.get("event")
            if event == "progress":
                self._progress(entry)
            elif event == "end" and entry["attempt"] == self._directory.state().attempt:
                has_ended = True
                self._stopped = entry["stopped"]
            elif "status" in entry:
                arrived.put_nowait(entry)

        fetching = asyncio.ensure_future(self._fetch(arrived))
        following = asyncio.ensure_future(
            self._head.follow(self._position, self._directory.state().attempt, take)
        )
        try:
            await asyncio.wait({fetching, following}, return_when=asyncio.FIRST_COMPLETED)
            if fetching.done():
                fetching.result()
            await following
            draining = asyncio.ensure_future(arrived.join())
            await asyncio.wait({fetching, draining}, return_when=asyncio.FIRST_COMPLETED)
            draining.cancel()
            if fetching.done():
                fetching.result()
        finally:
            for task in (fetching, following):
                task.cancel()
            await asyncio.gather(fetching, following, return_exceptions=True)
        return has_ended

    async def _fetch(self, arrived: asyncio.Queue[Result]) -> None:
        """Fetch what has arrived, several runs at once if they end fast."""
        while True:
            batch = [await arrived.get()]
            while len(batch) < _BATCH and not arrived.empty():
                batch.append(arrived.get_nowait())
            new = [result for result in batch if not self._has(result)]
            if new:
                await self._store(new)
            self._position = batch[-1]["at"]
            for _ in batch:
                arrived.task_done()
            await self._price.refresh()

    def _has(self, result: Result) -> bool:
        """Whether a result is here, or is one that is being replaced."""
        for known in (self._results, self._outdated):
            before = known.get(result["run"])
            if before is not None and before["started"] == result["started"]:
                return True
        return result["run"] in self._spec.skip

    async def _store(self, results: Sequence[Result]) -> None:
        # Of a run that was repeated, the head has the last results only.
        latest = {result["run"]: result for result in results}
        with tempfile.TemporaryFile() as archive:
            await self._head.fetch(list(latest), archive)
            archive.seek(0)
            await asyncio.to_thread(self._directory.store, list(latest.values()), archive)
        for result in latest.values():
            self._results[result["run"]] = result
            self._ctx.emit(run_ended(result))

    def _progress(self, entry: dict[str, Any]) -> None:
        left = entry["seconds_left"]
        unfinished = entry["total"] - entry["done"]
        self._ctx.emit(
            SweepProgress(
                entry["total"], entry["done"], entry["failed"], entry["running"],
                max(0, unfinished - entry["running"]), entry["nodes"], left, self._price.cost(),
                self._price.total(left),
            )
        )  # fmt: skip

    async def _when_reachable(self, act: Callable[[], Awaitable[None]], patience_s: float) -> None:
        """Repeat an action while the cluster cannot be reached: its Ray may be restarting."""
        deadline = self._ctx.clock.monotonic() + patience_s
        has_warned = False
        while True:
            try:
                return await act()
            except UnreachableError as error:
                if self._ctx.clock.monotonic() >= deadline:
                    raise
                if not has_warned:
                    self._note(f"cannot reach the cluster, trying again: {error}", "warning")
                has_warned = True
            await self._ctx.clock.sleep(_RECONNECT_S)

    async def _replace_driver(self) -> None:
        """The driver ended without its last entry: it was killed, or it could not start."""
        job = await self._job()
        if job is not None and not job.has_ended:
            return  # its environment is being built
        if job is not None and job.status == "STOPPED":
            self._stopped = f"job {job.id} was stopped"
            return
        lost = self._lost_drivers()
        if lost > _MAX_LOST:
            output = await self._driver_log(job)
            raise ShoalError(
                "the driver of the sweep does not run",
                why=job.message if job is not None else "Ray does not know its job",
                fix=f"continue the sweep: shoal sweep resume {self._directory.path}",
                output=output,
            )
        await self._submit()
        self._lost = (len(self._results), lost)
        self._note("the driver of the sweep was lost: started another", "warning")

    def _lost_drivers(self) -> int:
        """How many drivers were lost since the last new result, this one included."""
        before, lost = self._lost
        return lost + 1 if before == len(self._results) else 1

    async def _driver_log(self, job: RayJob | None) -> list[str]:
        if job is None:
            return []
        chunks: list[bytes] = []
        try:
            await jobs.logs(self._ctx, self._cluster, job.id, chunks.append)
        except ShoalError as error:
            _log.info("could not read the log of %s: %s", job.id, error)
        return b"".join(chunks).decode(errors="replace").splitlines()[-_LOG_LINES:]

    async def _clean_up(self) -> None:
        try:
            await self._head.remove()
        except ShoalError as error:
            _log.info("the files of the sweep stay on the head: %s", error)

    def _detached_note(self) -> str:
        path = self._directory.path
        return (
            f"the sweep goes on; follow it: shoal sweep resume {path}\n"
            f"or stop it: shoal sweep stop {path}"
        )

    def _note(self, text: str, level: Any = "info") -> None:
        self._ctx.emit(SweepNote(text, level))


def run_ended(result: Result) -> SweepRunEnded:
    known = known_failure("\n".join(result["tail"]))
    return SweepRunEnded(
        result["run"], result["params"], result["status"], result["seconds"], result["metrics"],
        result["why"], f"{known.why}: {known.fix}" if known else "", result["attempts"],
        tuple(result["tail"]), tuple(result["notes"]),
    )  # fmt: skip
