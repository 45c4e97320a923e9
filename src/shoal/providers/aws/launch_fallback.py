"""Asks for machines until there are enough: from one offer to the next when AWS has none left.

Every attempt is an event, so that a person sees what was tried, what was refused and why.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal.core.errors import CapacityError, QuotaError, ShoalError
from shoal.core.events import Emit, LaunchAttempted
from shoal.providers.aws.launch_options import LaunchOption, UnavailableOfferings
from shoal.providers.model import LaunchRequest

Record = dict[str, Any]
Price = Callable[[LaunchOption], float | None]
Ask = Callable[[LaunchOption, int], Awaitable[Sequence[Record]]]


@dataclass
class LaunchOutcome:
    """What became of one launch: the machines it gave, the last refusal, if some are missing, and
    what put an end to it, if it was something else."""

    launch: LaunchRequest
    records: list[Record] = field(default_factory=list)
    refusal: CapacityError | QuotaError | None = None
    error: ShoalError | None = None

    @property
    def missing(self) -> int:
        return self.launch.count - len(self.records)


async def launch_with_fallback(
    launch: LaunchRequest,
    offered: Sequence[LaunchOption],
    ask: Ask,
    refusals: UnavailableOfferings,
    emit: Emit,
    price: Price = lambda offer: None,
) -> LaunchOutcome:
    """Ask for one launch's machines. Only want of capacity or quota moves on to the next offer.
    Whatever else goes wrong is returned with what came before it, and not raised: machines that
    run must be known to whoever gives them back."""
    result = LaunchOutcome(launch)
    over_quota: set[tuple[str, str]] = set()
    for offer in refusals.last(offered):
        kind = (offer.instance_type, offer.market)
        # A quota is the account's: no other zone will do.
        if not result.missing or kind in over_quota:
            continue
        try:
            records = await ask(offer, result.missing)
        except (CapacityError, QuotaError) as error:
            result.refusal = error
            refusals.note(offer)
            if isinstance(error, QuotaError):
                over_quota.add(kind)
            emit(_tried(launch, offer, result.missing, price, error=error.why))
            continue
        except ShoalError as error:
            result.error = error
            break
        if len(records) < result.missing:
            refusals.note(offer)
        emit(_tried(launch, offer, result.missing, price, launched=len(records)))
        result.records += records
    return result


def _tried(
    launch: LaunchRequest,
    offer: LaunchOption,
    asked: int,
    price: Price,
    *,
    launched: int = 0,
    error: str = "",
) -> LaunchAttempted:
    return LaunchAttempted(
        node_type=launch.node_type,
        requested=asked,
        launched=launched,
        instance_type=offer.instance_type,
        market=offer.market,
        zone=offer.subnet.zone,
        price=price(offer),
        error=error,
    )
