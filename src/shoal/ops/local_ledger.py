"""This machine's own record of what clusters have cost: it outlives them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from shoal.cluster.handle import ClusterHandle
from shoal.controller.paths import DIRECTORY, RENTALS
from shoal.core.errors import ShoalError
from shoal.costs.ledger import Rental, Rentals, merged, parse
from shoal.ops.context import Context
from shoal.providers.model import Instance, State
from shoal.remote.runner import capture

_READ_SECONDS = 20.0
ON = (State.PENDING, State.RUNNING)


def rentals(ctx: Context, cluster: str) -> list[Rental]:
    """All that is known here of a cluster's machines."""
    return merged(_file(ctx, cluster).read())


def clusters(ctx: Context) -> list[str]:
    """The clusters of which something is known, also those that are gone."""
    return sorted(path.stem for path in _directory(ctx).glob("*.jsonl"))


def note(ctx: Context, cluster: str, instances: Sequence[Instance]) -> None:
    """Write down that these machines are on."""
    now = ctx.clock.now()
    # Of a machine that was always there, only we can say since when it is the cluster's.
    since = {r.id: r.began for r in rentals(ctx, cluster) if r.ended is None}
    _file(ctx, cluster).write(
        Rental(
            id=i.id,
            node_type=i.node_type,
            market=i.market,
            zone=i.zone,
            price_per_hour=i.price_per_hour,
            began=since.get(i.id, now) if i.created_at is None else i.created_at,
            seen=now,
        )
        for i in instances
        if i.state in ON
    )


def close(ctx: Context, cluster: str, instances: Sequence[Instance]) -> None:
    """Write down that these machines are let go."""
    now = ctx.clock.now()
    ids = {i.id for i in instances}
    ended = [r for r in rentals(ctx, cluster) if r.ended is None and r.id in ids]
    _file(ctx, cluster).write(replace(r, seen=now, ended=now) for r in ended)


async def take_over(ctx: Context, site: ClusterHandle, head: Instance) -> None:
    """Have here what the head knows: of the machines that came and went with the load."""
    command = f"cat {DIRECTORY}/{RENTALS}"
    try:
        _, printed = await capture(site.inside(head), command, timeout=_READ_SECONDS)
    except (ShoalError, TimeoutError):
        return
    cluster = site.spec.cluster_name
    theirs = parse("\n".join(printed))
    known = rentals(ctx, cluster)
    new = [r for r in merged([*known, *theirs]) if r not in known]
    _file(ctx, cluster).write(new)


def _file(ctx: Context, cluster: str) -> Rentals:
    return Rentals(_directory(ctx) / f"{cluster}.jsonl")


def _directory(ctx: Context) -> Path:
    return ctx.home / "costs"
