"""What a cloud was asked for, what came of it, what it cost, and what is still there."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.simcloud.calls import Call

LIST_PRICES = {
    "t3.micro": 0.0104,
    "t3.medium": 0.0416,
    "m5.large": 0.096,
    "m5.xlarge": 0.192,
    "m5.2xlarge": 0.384,
    "c5.large": 0.085,
    "c5.4xlarge": 0.68,
    "g4dn.xlarge": 0.526,
    "p3.2xlarge": 3.06,
    "p3.8xlarge": 12.24,
}
"""US dollars an hour, on demand, in us-west-2."""
_OTHER_PRICE = 0.10
_SPOT_SHARE = 0.3


def hourly_price(type: str, market: str) -> float:
    """Return US dollars an hour at list price."""
    share = _SPOT_SHARE if market == "spot" else 1.0
    return LIST_PRICES.get(type, _OTHER_PRICE) * share


@dataclass(frozen=True)
class Entry:
    """An API call and its outcome."""

    call: Call
    at: float
    error: str | None
    """The code of the refusal; `lost` when the reply was; None when it was answered."""


@dataclass(frozen=True)
class Thing:
    """Anything that costs money, room or trust when it is forgotten."""

    kind: str
    id: str
    name: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.kind, self.id, self.name)))


@dataclass
class Life:
    """When a thing was made, by which call, and when it was gone."""

    made_by: Call
    made: float
    gone: float | None = None


@dataclass
class Rental:
    """A machine, from the call that asked for it to its end."""

    id: str
    type: str
    market: str
    zone: str
    asked_by: Call
    began: float
    ended: float | None = None

    def cost(self, now: float) -> float:
        """Return US dollars at list price."""
        hours = ((self.ended or now) - self.began) / 3600
        return hourly_price(self.type, self.market) * hours


@dataclass
class Ledger:
    """The books of one cloud. They only ever grow."""

    entries: list[Entry] = field(default_factory=list)
    lives: dict[Thing, Life] = field(default_factory=dict)
    rentals: dict[str, Rental] = field(default_factory=dict)

    def note(self, call: Call, error: str | None) -> None:
        self.entries.append(Entry(call, time.time(), error))

    def witness(self, things: Iterable[Thing], call: Call) -> None:
        """Write down what a call made, and what is gone, from what is there after it."""
        present = set(things)
        now = time.time()
        for thing in present - self.lives.keys():
            self.lives[thing] = Life(call, now)
        for thing, life in self.lives.items():
            if life.gone is None and thing not in present:
                life.gone = now

    def calls(self) -> Counter[str]:
        """Count the API calls by name."""
        return Counter(entry.call.action for entry in self.entries)

    def answered(self) -> Counter[str]:
        """Count the API calls that were not refused: rehearsals are not among them."""
        return Counter(entry.call.action for entry in self.entries if entry.error is None)

    def cost(self) -> float:
        """Return what all machines have cost so far, in US dollars at list price."""
        now = time.time()
        return sum(rental.cost(now) for rental in self.rentals.values())

    def running(self) -> list[Rental]:
        """Return the machines that are still paid for."""
        return [rental for rental in self.rentals.values() if rental.ended is None]
