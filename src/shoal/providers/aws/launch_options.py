"""Where machines of one kind may be asked for, in which order, and what was refused lately.

Zones first, then the type's alternatives, then the dearer market: an order that changes as
little as possible of what the user asked for.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shoal.core.atomic_write import write_atomically
from shoal.core.clock import Clock

Market = Literal["spot", "on-demand"]

# For how long a refusal counts: capacity comes back within minutes, and asking costs a second.
_REMEMBERED_SECONDS = 300.0


@dataclass(frozen=True)
class Subnet:
    """A place where machines can be put."""

    id: str
    zone: str
    vpc: str


@dataclass(frozen=True)
class LaunchOption:
    """One way to ask: a type, a market and a place."""

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
    on_demand_too: bool,
) -> list[LaunchOption]:
    """All ways to ask, the one that was wished for first."""
    markets: list[Market] = [market]
    if market == "spot" and on_demand_too:
        markets.append("on-demand")
    return [
        LaunchOption(instance_type, chosen, subnet)
        for chosen in markets
        for instance_type in instance_types
        for subnet in subnets
    ]


class UnavailableOfferings:
    """What AWS had none of lately. Kept in a file, so that the next command knows as well; it is
    a hint, and losing it costs a few calls."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock

    def note(self, offer: LaunchOption) -> None:
        known = {**self._recent(), str(offer): self._clock.now()}
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_atomically(self._path, json.dumps(known))

    def last(self, offered: Sequence[LaunchOption]) -> list[LaunchOption]:
        """The offers, with those that were refused lately at the end, so that they are tried
        only when nothing else is left."""
        refused = self._recent()
        return sorted(offered, key=lambda offer: refused.get(str(offer), 0.0))

    def _recent(self) -> dict[str, float]:
        try:
            known = json.loads(self._path.read_text())
            now = self._clock.now()
            return {k: float(at) for k, at in known.items() if now - at < _REMEMBERED_SECONDS}
        except (OSError, ValueError, AttributeError, TypeError):
            return {}
