"""Lists the clusters known on this machine. One that cannot be queried must not hide the others."""

from __future__ import annotations

import asyncio
import logging
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.cluster.handle import ClusterHandle
from shoal.controller import client, status_reader
from shoal.core.concurrency import run_all
from shoal.core.errors import ShoalError
from shoal.core.events import Warned
from shoal.ops import known_clusters
from shoal.ops.context import Context
from shoal.providers.model import Instance, State, head_of

_log = logging.getLogger(__name__)

_STATUS_SECONDS = 5.0


@dataclass(frozen=True)
class ClusterSummary:
    """One line of `shoal ls`. Not `complete` where the price of an instance is unknown; with a
    `problem`, the cluster could not be queried and the other fields say nothing. `controller` says
    what is wrong with the cluster's controller, if anything is known to be. `hint` says what is
    left of a cluster that has no instances, or which of them are off."""

    cluster: str
    provider: str
    nodes: int
    age_s: float | None
    price_per_hour: float = 0.0
    complete: bool = True
    problem: str = ""
    controller: str = ""
    hint: str = ""


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
    age = None if oldest is None else max(0.0, ctx.clock.now() - oldest)
    billed = [i for i in reachable if i.state not in (State.STOPPED, State.TERMINATED)]
    price = math.fsum(i.price_per_hour or 0.0 for i in billed)
    complete = not cluster.capabilities.costs_money or all(
        i.price_per_hour is not None for i in billed
    )
    controller = await _controller_problem(cluster, instances)
    hint = stopped_instances(instances)
    if not instances and cluster.capabilities.costs_money:
        # After `autostop`, for instance: a head may not delete its own role and security group.
        hint = f"its key pair, security group and role may remain: shoal down {shlex.quote(name)}"
    return ClusterSummary(
        name, provider, len(reachable), age, price, complete, controller=controller, hint=hint
    )


def stopped_instances(instances: Sequence[Instance]) -> str:
    """How many instances are off: their disks cost nevertheless."""
    count = sum(i.state is State.STOPPED and bool(i.instance_type) for i in instances)
    return f"{count} stopped: disk only" if count else ""


async def _controller_problem(cluster: ClusterHandle, instances: Sequence[Instance]) -> str:
    head = head_of(instances)
    if head is None or head.state is not State.RUNNING or not client.has_controller(cluster.spec):
        return ""
    try:
        report = await asyncio.wait_for(status_reader.read_status(cluster, head), _STATUS_SECONDS)
    except (ShoalError, asyncio.TimeoutError) as error:
        _log.info("could not read the controller's status of %s: %s", cluster.name, error)
        return ""
    if report is not None and report.restarts_too_often:
        return f"its controller restarted {report.restarts} times within the last minute"
    return ""
