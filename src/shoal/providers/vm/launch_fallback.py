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
from shoal.providers.model import LaunchRequest
from shoal.providers.vm.launch_options import LaunchOption, UnavailableOfferings

_log = logging.getLogger(__name__)

Record = dict[str, Any]
Price = Callable[[LaunchOption], float | None]
RunInstances = Callable[[LaunchOption, int], Awaitable[Sequence[Record]]]


@dataclass
class LaunchOutcome:
    """The result of one launch: the records of its instances, the capacity and quota errors of the
    options that failed, and any other error that ended it."""

    launch: LaunchRequest
    records: list[Record] = field(default_factory=list)
    refusals: list[tuple[LaunchOption, CapacityError | QuotaError]] = field(default_factory=list)
    error: ShoalError | None = None

    @property
    def missing(self) -> int:
        return self.launch.count - len(self.records)

    @property
    def refusal(self) -> CapacityError | QuotaError | None:
        """One error for all options that failed; None if none did."""
        if not self.refusals:
            return None
        last = self.refusals[-1][1]
        zones: dict[tuple[str, str], list[str]] = {}
        messages: dict[tuple[str, str], str] = {}
        for option, error in self.refusals:
            key = (option.instance_type, option.market)
            zones.setdefault(key, []).append(option.subnet.zone)
            messages[key] = error.why
        why = "; ".join(
            f"{name} {market} in {', '.join(dict.fromkeys(zones[name, market]))}: {message}"
            for (name, market), message in messages.items()
        )
        what = f"could not launch {self.missing} of {self.launch.count} {self.launch.node_type}"
        return type(last)(what, why=why, fix=last.fix or self._alternatives)

    @property
    def _alternatives(self) -> str:
        fallback = f"{{{self.launch.node_type}: [INSTANCE_TYPE]}}"
        return (
            f"allow other instance types: shoal: {{fallback: {fallback}}}\n"
            "or choose another region, or retry later: shoal up CLUSTER"
        )


async def launch_with_fallback(
    launch: LaunchRequest,
    options: Sequence[LaunchOption],
    run_instances: RunInstances,
    unavailable: UnavailableOfferings,
    emit: Emit,
    price: Price = lambda option: None,
    is_final: Callable[[ShoalError], bool] = lambda error: False,
) -> LaunchOutcome:
    """Launch the instances of one request. Errors other than capacity and quota are returned with
    the instances launched before them, not raised: the caller must know all running instances to
    terminate them. `is_final` says of a quota error that no other option would help."""
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
            _log.info("refused %d x %s: %s", outcome.missing, option, error.why)
            outcome.refusals.append((option, error))
            unavailable.record(option)
            if isinstance(error, QuotaError):
                over_quota.add(type_and_market)
            emit(_attempt_event(launch, option, outcome.missing, price, error=error.why))
            if is_final(error):
                break
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
