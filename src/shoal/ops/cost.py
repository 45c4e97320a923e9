"""What a cluster has cost so far: by its machines as they are, by what its head wrote down, and by
what this machine knows, also when the cluster is gone."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shoal.cluster.handle import ClusterHandle
from shoal.core.errors import NotFoundError, ShoalError
from shoal.core.events import Warned
from shoal.costs.ledger import Spent, spent
from shoal.ops import cluster_lookup, local_ledger
from shoal.ops.cluster_lookup import ClusterRef
from shoal.ops.context import Context
from shoal.providers.model import Instance, State
from shoal.spec.cluster_spec import ClusterSpec


@dataclass(frozen=True)
class Cost:
    """US dollars at list prices. `since` is when the first machine was switched on; not `complete`
    where a price or an end is not known."""

    cluster: str
    rows: tuple[Spent, ...]
    cost: float
    complete: bool
    since: float | None
    per_hour: float


async def cost(ctx: Context, ref: ClusterRef) -> Cost:
    """What was spent. Raises `NotFoundError` for a cluster of which nothing is known here."""
    name, spec = await _meant(ctx, ref)
    on = {} if spec is None else {i.id: i for i in await _on(ctx, spec)}
    rentals = local_ledger.rentals(ctx, name)
    rows = spent(rentals, ctx.clock.now(), on)
    return Cost(
        cluster=name,
        rows=tuple(rows),
        cost=math.fsum(row.cost or 0.0 for row in rows),
        complete=all(row.complete for row in rows),
        since=min((r.began for r in rentals), default=None),
        per_hour=math.fsum(i.price_per_hour or 0.0 for i in on.values()),
    )


async def _meant(ctx: Context, ref: ClusterRef) -> tuple[str, ClusterSpec | None]:
    """The cluster's name, and its spec if it is not over and done with."""
    try:
        spec = await cluster_lookup.resolve(ctx, ref)
        return spec.cluster_name, spec
    except NotFoundError:
        name = ref.source if isinstance(ref.source, str) else ref.overrides.cluster_name
        known = local_ledger.clusters(ctx)
        if name is None and len(known) == 1:
            return known[0], None
        if name not in known:
            raise
        return str(name), None


async def _on(ctx: Context, spec: ClusterSpec) -> list[Instance]:
    """The machines that cost money now, having written down what they and their head know."""
    cluster = ClusterHandle.of(ctx, spec)
    try:
        there = await cluster.provider.find(spec.cluster_name)
    except ShoalError as error:
        why = f"{error}; told is what is known here"
        ctx.emit(Warned("the provider cannot be asked", why, error.fix))
        return []
    head = next((i for i in there if i.role == "head" and i.state is State.RUNNING), None)
    if head is not None:
        await local_ledger.take_over(ctx, cluster, head)
    on = [i for i in there if i.state in local_ledger.ON]
    local_ledger.note(ctx, spec.cluster_name, on)
    return on
