"""When the nodes of a running cluster restart their Ray: after everything that can fail without
touching Ray, and all at the same time if the head is among them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from shoal.core.errors import SetupError


class NotRestartedError(SetupError):
    """A node is fine, but was not restarted, because another one could not be prepared."""


class RayRestart:
    """The nodes of one `up` whose Ray runs and must restart.

    If the head restarts, no Ray is stopped before all of these nodes are prepared, and none starts
    before all are stopped: a worker would join the old GCS, and a head does not start while old
    workers are connected. If the head's Ray does not run (`head_is_gone`), theirs is useless and is
    stopped first. If the head stays, each node restarts by itself.
    """

    def __init__(
        self, restarting: Collection[str], *, head_restarts: bool, head_is_gone: bool
    ) -> None:
        has_barrier = head_restarts or head_is_gone
        self._preparing = set(restarting) if head_restarts else set()
        self._stopping = set(restarting) if has_barrier else set()
        self._all_prepared, self._all_stopped = asyncio.Event(), asyncio.Event()
        self._unprepared = ""
        self.stops_first = head_is_gone
        self._update()

    async def wait_until_prepared(self, node: str) -> None:
        """Report that a node is prepared, and return when all are. Raises `NotRestartedError` if
        one of them cannot be prepared."""
        self._preparing.discard(node)
        self._update()
        await self._all_prepared.wait()
        self._check()

    async def wait_until_stopped(self, node: str) -> None:
        """Report that a node's old Ray does not run, and return when no node's does."""
        self._stopping.discard(node)
        self._update()
        await self._all_stopped.wait()
        self._check()

    def give_up(self, node: str) -> None:
        """Report that a node has failed: before all were prepared, nothing is restarted."""
        if node in self._preparing:
            self._unprepared = self._unprepared or node
            self._preparing.clear()
            self._stopping.clear()
        self._stopping.discard(node)
        self._update()

    def _update(self) -> None:
        if not self._preparing:
            self._all_prepared.set()
        if not self._stopping:
            self._all_stopped.set()

    def error(self) -> NotRestartedError | None:
        """Why nothing is restarted; None unless a node could not be prepared."""
        if not self._unprepared:
            return None
        why = f"{self._unprepared} could not be prepared for the restart"
        return NotRestartedError("its Ray was not restarted", why=why)

    def _check(self) -> None:
        if (error := self.error()) is not None:
            raise error
