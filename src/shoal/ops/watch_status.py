"""Repeats a cluster's status for people without a browser, with what it has cost."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from shoal.core.errors import ShoalError, UnreachableError
from shoal.core.events import ignore_events
from shoal.core.logs import suppress_and_log
from shoal.ops.cluster_lookup import ClusterRef
from shoal.ops.context import Context
from shoal.ops.cost import Cost, cost
from shoal.ops.status import ClusterStatus, status
from shoal.spec.cluster_spec import ClusterSpec

_log = logging.getLogger(__name__)

# The cost needs another listing and the head's ledger, and changes slowly.
_COST_SECONDS = 30.0


@dataclass(frozen=True)
class WatchedStatus:
    """The status, and the cost so far; `cost` is None where none is known. With a `problem`, the
    cluster cannot be asked, and the status is the last one."""

    status: ClusterStatus
    cost: Cost | None = None
    problem: str = ""


async def watch(
    ctx: Context, spec: ClusterSpec, show: Callable[[WatchedStatus], None], *, every: float
) -> None:
    """Call `show` with the cluster's status every `every` seconds, until cancelled. A failure of
    the first time is raised; later ones are shown, because a laptop may sleep or move."""
    watched: WatchedStatus | None = None
    quiet = replace(ctx, emit=ignore_events)
    cost_at = -_COST_SECONDS
    while True:
        try:
            now = await status(ctx, spec)
        except UnreachableError as error:
            if watched is None:
                raise
            watched = replace(watched, problem=str(error))
        else:
            watched = WatchedStatus(now, watched.cost if watched is not None else None)
        if ctx.clock.monotonic() - cost_at >= _COST_SECONDS:
            cost_at = ctx.clock.monotonic()
            with suppress_and_log(_log, "read the cost", ShoalError):
                found = await cost(quiet, ClusterRef(spec.cluster_name))
                known = any(row.cost is not None for row in found.rows)
                watched = replace(watched, cost=found if known else None)
        show(watched)
        await ctx.clock.sleep(every)
