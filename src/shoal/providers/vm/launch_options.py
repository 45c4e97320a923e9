"""The options of a launch (instance type, market, subnet), the order in which they are tried, and
which of them were unavailable recently.

Other zones come first, then other instance types, then on-demand instead of spot: the order that
changes the least of what the file says.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shoal.core.atomic_write import write_atomically
from shoal.core.clock import Clock
from shoal.core.logs import suppress_and_log

_log = logging.getLogger(__name__)

Market = Literal["spot", "on-demand"]

# How long an option counts as unavailable: capacity returns within minutes, and an attempt costs
# about a second.
_UNAVAILABLE_SECONDS = 300.0


@dataclass(frozen=True)
class Subnet:
    """A subnet that instances can be launched in."""

    id: str
    zone: str
    vpc: str


@dataclass(frozen=True)
class LaunchOption:
    """One way to launch: an instance type, a market and a subnet."""

    instance_type: str
    market: Market
    subnet: Subnet

    def __str__(self) -> str:
        return f"{self.instance_type} {self.market} in {self.subnet.zone}"


def launch_options(
    instance_types: Sequence[str],
    market: Market,
    subnets: Sequence[Subnet],
    *,
    on_demand_fallback: bool,
) -> list[LaunchOption]:
    """All options, in the order in which they are tried."""
    markets: list[Market] = [market]
    if market == "spot" and on_demand_fallback:
        markets.append("on-demand")
    return [
        LaunchOption(instance_type, market, subnet)
        for market in markets
        for instance_type in instance_types
        for subnet in subnets
    ]


def order_zones(
    options: Sequence[LaunchOption],
    preferred_zone: str,
    price: Callable[[LaunchOption], float | None],
) -> list[LaunchOption]:
    """The options in the same order of markets and types, each with the preferred zone first, then,
    for spot, with the cheapest. Zones without a known price come last."""
    groups = list(dict.fromkeys((option.market, option.instance_type) for option in options))

    def key(option: LaunchOption) -> tuple[int, bool, float]:
        cost = price(option) if option.market == "spot" else 0.0
        group = groups.index((option.market, option.instance_type))
        return group, option.subnet.zone != preferred_zone, math.inf if cost is None else cost

    return sorted(options, key=key)


class UnavailableOfferings:
    """The options that the cloud had no capacity or quota for recently. Kept in a file, so that the
    next command knows them too; if the file is lost, a few more calls are made."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock

    def record(self, option: LaunchOption) -> None:
        """Remember that an option is unavailable now."""
        recent = {**self._recent(), str(option): self._clock.now()}
        with suppress_and_log(_log, "save unavailable offerings", OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_atomically(self._path, json.dumps(recent))

    def deprioritise(self, options: Sequence[LaunchOption]) -> list[LaunchOption]:
        """The options, with the recently unavailable ones last."""
        recent = self._recent()
        return sorted(options, key=lambda option: recent.get(str(option), 0.0))

    def _recent(self) -> dict[str, float]:
        try:
            recorded = json.loads(self._path.read_text())
            now = self._clock.now()
            return {k: float(at) for k, at in recorded.items() if now - at < _UNAVAILABLE_SECONDS}
        except (OSError, ValueError, AttributeError, TypeError):
            return {}
