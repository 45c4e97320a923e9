"""What a person owns in the cloud, in every region: clusters that run, and what was left behind."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.core.concurrency import run_all
from shoal.core.events import PlanStep, ResourcesDeleted, Stage, Warned
from shoal.ops.context import Context
from shoal.providers import require_aws
from shoal.providers.model import State

if TYPE_CHECKING:
    from shoal.providers.aws.inventory import ClusterResources, RetainedVolume


@dataclass(frozen=True)
class ClusterListing:
    """One cluster in one region of an account. Its price is not `complete` where nobody knows that
    of a machine. `kept` are volumes that its file wanted to outlive their machines, in words."""

    cluster: str
    provider: str
    made_by: str
    nodes: int
    state: str
    age_s: float | None
    price_per_hour: float
    complete: bool = True
    others: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


async def everything(ctx: Context) -> list[ClusterListing]:
    """Every cluster of the account, Shoal's and Ray's."""
    from shoal.providers.aws.inventory import holdings, with_prices

    require_aws()
    ctx.emit(Stage("asking every region"))
    found = await holdings(ctx.clock, ctx.emit)
    return [_owned(ctx, one) for one in await with_prices(found, ctx.clock, ctx.home)]


async def collect_garbage(ctx: Context) -> bool:
    """Give back what nobody leads: workers without a head, and what clusters left behind that
    have no machine any more. What somebody may be making or wanted to keep is told of and left
    alone. False when the person said no."""
    from shoal.providers.aws.inventory import delete_orphan, holdings

    require_aws()
    ctx.emit(Stage("asking every region"))
    found = await holdings(ctx.clock, ctx.emit)
    now = ctx.clock.now()
    for holding in found:
        _tell_what_stays(ctx, holding)
    orphans = [h for h in found if h.is_orphan(now)]
    for holding in orphans:
        where = f"{holding.cluster} in {holding.region}"
        for instance in holding.instances:
            ctx.emit(PlanStep("terminate", f"instance {instance.id}", f"{where} has no head"))
        for thing in holding.others:
            ctx.emit(PlanStep("remove", thing, f"{where} has no machine"))
    if not orphans:
        ctx.emit(ResourcesDeleted(()))
        return True
    if not ctx.confirm("Remove all of this?"):
        return False
    removed = await run_all(delete_orphan(h, ctx.clock, ctx.emit) for h in orphans)
    ctx.emit(ResourcesDeleted(tuple(thing for things in removed for thing in things)))
    return True


def _tell_what_stays(ctx: Context, holding: ClusterResources) -> None:
    where = f"{holding.cluster} in {holding.region}"
    if not holding.is_led and holding.is_new(ctx.clock.now()):
        why = "something of it was made just now: somebody may be bringing it up"
        ctx.emit(Warned(f"{where} is left alone", why, "shoal gc again, in some minutes"))
    for volume in holding.kept:
        delete = f"aws ec2 delete-volume --region {holding.region} --volume-id {volume.id}"
        why = f"the file of {where} says so"
        ctx.emit(Warned(f"the {_in_words(volume)}, is kept", why, f"{delete}, if nobody needs it"))


def _in_words(volume: RetainedVolume) -> str:
    return f"volume {volume.id} with {volume.gib} GiB, about ${volume.per_month:.2f} a month"


def _owned(ctx: Context, holding: ClusterResources) -> ClusterListing:
    instances = holding.instances
    on = [i for i in instances if i.state in (State.PENDING, State.RUNNING)]
    oldest = min((i.created_at for i in instances if i.created_at is not None), default=None)
    return ClusterListing(
        cluster=holding.cluster,
        provider=f"aws {holding.region}",
        made_by="shoal" if holding.by_shoal else "ray",
        nodes=len(instances),
        state=_state(holding, ctx.clock.now()),
        age_s=None if oldest is None else ctx.clock.now() - oldest,
        price_per_hour=math.fsum(i.price_per_hour or 0.0 for i in on),
        complete=all(i.price_per_hour is not None for i in on),
        others=holding.others,
        kept=tuple(map(_in_words, holding.kept)),
    )


def _state(holding: ClusterResources, now: float) -> str:
    if not holding.is_led and holding.is_new(now):
        return "no head yet"
    if holding.kept and not (holding.instances or holding.others):
        return "volumes kept"
    if not holding.instances:
        return "no machine; shoal gc"
    if not holding.is_led:
        return "no head; shoal gc"
    states = {i.state for i in holding.instances}
    if states <= {State.STOPPED, State.STOPPING}:
        return "stopped"
    return "up"
