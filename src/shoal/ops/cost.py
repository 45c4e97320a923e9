"""What a cluster has cost so far, from its instances, its head's ledger and the local ledger. The
local ledger also answers for clusters that no longer exist."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.cluster.handle import ClusterHandle
from shoal.controller.paths import DIRECTORY, USAGE_LEDGER
from shoal.core.errors import NotFoundError, ShoalError
from shoal.core.events import Warned
from shoal.costs.ledger import CostRow, parse_records, summarize
from shoal.costs.local_ledger import LocalLedger
from shoal.ops import cluster_lookup
from shoal.ops.cluster_lookup import ClusterRef
from shoal.ops.context import Context
from shoal.providers.model import Instance, State, head_of
from shoal.remote.runner import capture
from shoal.spec.cluster_spec import ClusterSpec

_log = logging.getLogger(__name__)

_READ_TIMEOUT_S = 20.0
_BILLED_STATES = (State.PENDING, State.RUNNING)


@dataclass(frozen=True)
class Cost:
    """US dollars at list prices. `since` is when the first instance started; `complete` is false
    if an end was not observed."""

    cluster: str
    rows: tuple[CostRow, ...]
    cost: float
    complete: bool
    since: float | None
    per_hour: float


async def cost(ctx: Context, ref: ClusterRef) -> Cost:
    """What the cluster has cost. Raises `NotFoundError` if it neither exists nor has records."""
    name, spec = await _resolve(ctx, ref)
    running = {} if spec is None else {i.id: i for i in await _running(ctx, spec)}
    records = local_ledger(ctx).records(name)
    rows = summarize(records, ctx.clock.now(), running)
    return Cost(
        cluster=name,
        rows=tuple(rows),
        cost=math.fsum(row.cost or 0.0 for row in rows),
        complete=all(row.complete for row in rows),
        since=min((r.started_at for r in records), default=None),
        per_hour=math.fsum((i.price_per_hour or 0.0) + i.extras_per_hour for i in running.values()),
    )


def local_ledger(ctx: Context) -> LocalLedger:
    """The usage ledger on this machine."""
    return LocalLedger(ctx.state_directory / "costs")


def record_running(ctx: Context, cluster: str, instances: Sequence[Instance]) -> None:
    """Record in the local ledger which of these instances run now."""
    billed = [i for i in instances if i.state in _BILLED_STATES]
    local_ledger(ctx).record_running(cluster, billed, ctx.clock.now())


def record_ended(ctx: Context, cluster: str, instances: Sequence[Instance]) -> None:
    """Record in the local ledger that these instances were terminated or stopped."""
    local_ledger(ctx).record_ended(cluster, [i.id for i in instances], ctx.clock.now())


async def import_head_ledger(ctx: Context, cluster: ClusterHandle, head: Instance) -> None:
    """Copy the head's ledger into the local one: only the head has seen the instances that the
    controller launched and terminated."""
    command = f"cat {DIRECTORY}/{USAGE_LEDGER}"
    try:
        _, output_lines = await capture(
            cluster.node_runner(head), command, timeout=_READ_TIMEOUT_S, skip_profile=True
        )
    except (ShoalError, TimeoutError) as error:
        _log.info("could not read the usage ledger on the head: %s", error)
        return
    local_ledger(ctx).add(cluster.spec.cluster_name, parse_records("\n".join(output_lines)))


async def _resolve(ctx: Context, ref: ClusterRef) -> tuple[str, ClusterSpec | None]:
    """The cluster's name, and its spec unless only the local ledger knows it."""
    try:
        spec = await cluster_lookup.resolve(ctx, ref)
        return spec.cluster_name, spec
    except NotFoundError:
        name = ref.source if isinstance(ref.source, str) else ref.overrides.cluster_name
        recorded = local_ledger(ctx).clusters()
        if name is None and len(recorded) == 1:
            return recorded[0], None
        if name not in recorded:
            raise
        return str(name), None


async def _running(ctx: Context, spec: ClusterSpec) -> list[Instance]:
    """The instances that cost money now. Updates the local ledger from them and from the head."""
    cluster = ClusterHandle.of(ctx, spec)
    try:
        instances = await cluster.instances()
    except ShoalError as error:
        why = f"{error}; showing locally recorded costs only"
        ctx.emit(Warned("could not list the cluster's instances", why, error.fix))
        return []
    head = head_of(i for i in instances if i.state is State.RUNNING)
    if head is not None:
        await import_head_ledger(ctx, cluster, head)
    record_running(ctx, spec.cluster_name, instances)
    return [i for i in instances if i.state in _BILLED_STATES]
