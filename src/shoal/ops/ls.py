"""Lists the clusters known on this machine. One that cannot be queried must not hide the others."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shoal.cluster.handle import ClusterHandle
from shoal.core.concurrency import run_all
from shoal.core.errors import ShoalError
from shoal.core.events import Warned
from shoal.ops import known_clusters
from shoal.ops.context import Context
from shoal.providers.model import State


@dataclass(frozen=True)
class ClusterSummary:
    """One line of `shoal ls`. Not `complete` where the price of an instance is unknown; with a
    `problem`, the cluster could not be queried and the other fields say nothing."""

    cluster: str
    provider: str
    nodes: int
    age_s: float | None
    price_per_hour: float = 0.0
    complete: bool = True
    problem: str = ""


async def ls(ctx: Context) -> list[ClusterSummary]:
    """Every known cluster, with the number of instances that its provider reports."""
    names = await known_clusters.known_names(ctx)
    return await run_all(_summary(ctx, name) for name in names)


async def _summary(ctx: Context, name: str) -> ClusterSummary:
    provider = ""
    try:
        spec = known_clusters.load_recorded(ctx, name)
        provider = spec.provider.type
        cluster = ClusterHandle.of(ctx, spec)
        instances = await cluster.instances()
    except ShoalError as error:
        ctx.emit(Warned(f"could not query cluster {name}", str(error), error.fix))
        return ClusterSummary(name, provider, 0, None, complete=False, problem=error.what)
    reachable = [i for i in instances if i.state is not State.UNREACHABLE]
    oldest = min((i.created_at for i in reachable if i.created_at is not None), default=None)
    age = None if oldest is None else ctx.clock.now() - oldest
    billed = [i for i in reachable if i.state not in (State.STOPPED, State.TERMINATED)]
    price = math.fsum(i.price_per_hour or 0.0 for i in billed)
    complete = not cluster.capabilities.costs_money or all(
        i.price_per_hour is not None for i in billed
    )
    return ClusterSummary(name, provider, len(reachable), age, price, complete)
