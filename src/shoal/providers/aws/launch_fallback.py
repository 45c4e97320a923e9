"""Launches with fallback: tries one launch option after another until all instances are launched.

Only capacity and quota errors lead to the next option. Every attempt is an event.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal.core.errors import CapacityError, QuotaError, ShoalError
from shoal.core.events import Emit, LaunchAttempted
from shoal.providers.aws.launch_options import LaunchOption, UnavailableOfferings
from shoal.providers.model import LaunchRequest

_log = logging.getLogger(__name__)

Record = dict[str, Any]
Price = Callable[[LaunchOption], float | None]
RunInstances = Callable[[LaunchOption, int], Awaitable[Sequence[Record]]]


@dataclass
class LaunchOutcome:
    """The result of one launch: the records of its instances, the last capacity or quota error if
    some are missing, and any other error that ended it."""

    launch: LaunchRequest
    records: list[Record] = field(default_factory=list)
    refusal: CapacityError | QuotaError | None = None
    error: ShoalError | None = None

    @property
    def missing(self) -> int:
        return self.launch.count - len(self.records)


async def launch_with_fallback(
    launch: LaunchRequest,
    options: Sequence[LaunchOption],
    run_instances: RunInstances,
    unavailable: UnavailableOfferings,
    emit: Emit,
    price: Price = lambda option: None,
) -> LaunchOutcome:
    """Launch the instances of one request. Errors other than capacity and quota are returned with
    the instances launched before them, not raised: the caller must know all running instances to
    terminate them."""
    outcome = LaunchOutcome(launch)
    over_quota: set[tuple[str, str]] = set()
    for option in unavailable.deprioritise(options):
        type_and_market = (option.instance_type, option.market)
        # A quota applies to the whole account, so no other zone helps.
        if not outcome.missing or type_and_market in over_quota:
            continue
        try:
            records = await run_instances(option, outcome.missing)
        except (CapacityError, QuotaError) as error:
            _log.info("AWS refused %d x %s: %s", outcome.missing, option, error.why)
            outcome.refusal = error
            unavailable.record(option)
            if isinstance(error, QuotaError):
                over_quota.add(type_and_market)
            emit(_attempt_event(launch, option, outcome.missing, price, error=error.why))
            continue
        except ShoalError as error:
            _log.warning("could not launch %s as %s: %s", launch.node_type, option, error.why)
            outcome.error = error
            break
        _log.info(
            "launched %d of %d %s: %s", len(records), outcome.missing, launch.node_type, option
        )
        if len(records) < outcome.missing:
            unavailable.record(option)
        emit(_attempt_event(launch, option, outcome.missing, price, launched=len(records)))
        outcome.records += records
    return outcome


def _attempt_event(
    launch: LaunchRequest,
    option: LaunchOption,
    count: int,
    price: Price,
    *,
    launched: int = 0,
    error: str = "",
) -> LaunchAttempted:
    return LaunchAttempted(
        node_type=launch.node_type,
        requested=count,
        launched=launched,
        instance_type=option.instance_type,
        market=option.market,
        zone=option.subnet.zone,
        price=price(option),
        error=error,
    )
