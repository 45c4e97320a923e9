"""Follows a job to its end. A lost connection is opened again, and no output is shown twice."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from shoal.core.clock import Clock
from shoal.core.errors import NotFoundError, ShoalError, UnreachableError
from shoal.jobs.client import RayJob, RayJobClient

_log = logging.getLogger(__name__)

Connect = Callable[[], AbstractAsyncContextManager[RayJobClient]]

_POLL_S = 0.25
_MAX_POLL_S = 1.0
_RECONNECT_S = 1.0
# How long to try again after a lost connection: a laptop may be moved, or sleep for a while.
PATIENCE_S = 900.0


class JobFollower:
    """`write` gets what the driver prints, unchanged; `on_lost` is called when a connection is
    lost, and before it is opened again."""

    def __init__(
        self,
        connect: Connect,
        id: str,
        write: Callable[[bytes], None],
        clock: Clock,
        *,
        on_lost: Callable[[UnreachableError], None] = lambda error: None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._connect = connect
        self._id = id
        self._write = write
        self._clock = clock
        self._on_lost = on_lost
        self._patience_s = patience_s
        self._printed = 0

    async def follow(self) -> RayJob:
        """Returns when the job has ended and its output is complete."""
        lost_at: float | None = None
        was_known = False
        while True:
            try:
                async with self._connect() as client:
                    await client.job(self._id)
                    lost_at, was_known = None, True
                    return await self._until_end(client)
            except NotFoundError:
                if not was_known:
                    raise
                raise ShoalError(
                    f"job {self._id} is lost",
                    why="the Ray of the head was restarted while it ran",
                    fix="submit it again",
                ) from None
            except UnreachableError as error:
                now = self._clock.monotonic()
                if lost_at is None:
                    lost_at = now
                    self._on_lost(error)
                if now - lost_at > self._patience_s:
                    raise
                _log.info("lost the connection to job %s: %s", self._id, error)
                await self._clock.sleep(_RECONNECT_S)

    async def print_log(self, client: RayJobClient, job: RayJob) -> None:
        """Write what the driver has printed so far and was not written yet."""
        await self._copy_log(client, job, follow=False)

    async def _until_end(self, client: RayJobClient) -> RayJob:
        live: asyncio.Future[None] | None = None
        poll = _POLL_S
        try:
            while not (job := await client.job(self._id)).has_ended:
                if live is not None and live.done():
                    live.result()
                    live = None
                if live is None and job.node_id:
                    live = asyncio.ensure_future(self._copy_log(client, job, follow=True))
                await self._clock.sleep(poll)
                poll = min(_MAX_POLL_S, poll * 1.2)
        finally:
            if live is not None:
                live.cancel()
                await asyncio.gather(live, return_exceptions=True)
        await self.print_log(client, job)
        return job

    async def _copy_log(self, client: RayJobClient, job: RayJob, *, follow: bool) -> None:
        """There is no log before the driver starts, and none if it could not start."""
        try:
            async for chunk in client.log(job, follow=follow, skip=self._printed):
                self._take(chunk)
        except UnreachableError:
            raise
        except ShoalError as error:
            _log.info("no log of job %s: %s", job.id, error)

    def _take(self, chunk: bytes) -> None:
        self._printed += len(chunk)
        self._write(chunk)
