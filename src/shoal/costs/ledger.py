"""What a cluster's machines cost: a line for each time that one was switched on, and for each time
that one was let go.

The file only ever grows, and says whole records: the last one of a rental counts. The head keeps
one for as long as it lives, and whoever brings the cluster up or down keeps another; together they
know most, and what one of them missed the other may have seen.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from shoal.controller.lifecycle import Node
from shoal.core.node_phase import Phase

# Two accounts of when a machine came to be may differ by so much: one is the provider's, the other
# that of who asked for it. A machine that was off in between was so for longer.
_SAME_SECONDS = 90.0
_OFF = (Phase.GONE, Phase.STOPPED)


@dataclass(frozen=True)
class Rental:
    """A machine, from when it was switched on until it was let go. `seen` is when it was last
    known to be on; the price is that of its first hour, None where there is none or nobody
    knows it."""

    id: str
    node_type: str
    market: str
    zone: str
    price_per_hour: float | None
    began: float
    seen: float
    ended: float | None = None

    def until(self, now: float, on: Iterable[str]) -> float:
        """When it ended, or now, if it is among those that are on. What ended unseen is counted
        for as long as it is known to have been there."""
        if self.ended is not None:
            return self.ended
        return now if self.id in on else self.seen


class Rentals:
    """One file of rentals. Losing a line costs a few cents on paper, so no error stops anyone."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open: dict[str, Rental] | None = None

    def read(self) -> list[Rental]:
        """All that is known."""
        try:
            return parse(self._path.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            return []

    def write(self, rentals: Iterable[Rental]) -> None:
        lines = "".join(json.dumps(asdict(rental)) + "\n" for rental in rentals)
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(lines)

    def note(self, nodes: Iterable[Node]) -> None:
        """Write down what is new about these nodes: that one is there, or no longer."""
        if self._open is None:
            self._open = {r.id: r for r in self.read() if r.ended is None}
        changed = []
        for node in nodes:
            known = self._open.get(node.id)
            if node.phase in _OFF:
                if known is not None:
                    changed.append(replace(known, seen=node.since, ended=node.since))
                    del self._open[node.id]
            elif known is None:
                self._open[node.id] = _of_node(node)
                changed.append(self._open[node.id])
        if changed:
            self.write(changed)


def _of_node(node: Node) -> Rental:
    return Rental(
        id=node.id,
        node_type=node.node_type,
        market=node.market,
        zone=node.zone,
        price_per_hour=node.price_per_hour,
        began=node.created,
        seen=node.since,
    )


def parse(text: str) -> list[Rental]:
    """The rentals in a file's text, as its last lines have them; what is no rental is left out."""
    found: dict[tuple[str, float], Rental] = {}
    for line in text.splitlines():
        with contextlib.suppress(ValueError, TypeError):
            rental = Rental(**json.loads(line))
            found[rental.id, rental.began] = rental
    return list(found.values())


def merged(accounts: Iterable[Rental]) -> list[Rental]:
    """One rental for each time a machine was on, from accounts that may tell of the same."""
    by_id: dict[str, list[Rental]] = {}
    for account in sorted(accounts, key=lambda r: r.began):
        told = by_id.setdefault(account.id, [])
        if told and account.began - told[-1].began <= _SAME_SECONDS:
            told[-1] = _joined(told[-1], account)
        else:
            told.append(account)
    return [rental for told in by_id.values() for rental in _in_order(told)]


def _joined(one: Rental, other: Rental) -> Rental:
    ends = [r.ended for r in (one, other) if r.ended is not None]
    price = one.price_per_hour if one.price_per_hour is not None else other.price_per_hour
    seen = max(one.seen, other.seen)
    # The first who saw it end is right: later accounts only missed it.
    return replace(one, price_per_hour=price, seen=seen, ended=min(ends, default=None))


def _in_order(told: Sequence[Rental]) -> list[Rental]:
    """A machine that was switched on again had been off: an end that nobody saw was before."""
    closed = [r if r.ended is not None else replace(r, ended=r.seen) for r in told[:-1]]
    return [*closed, told[-1]]


@dataclass(frozen=True)
class Spent:
    """What equal machines have cost. `cost` is None where nobody asks for money, or nobody knows
    how much; not `complete` where the end of one was not seen."""

    node_type: str
    market: str
    machines: int
    hours: float
    cost: float | None
    complete: bool


def spent(rentals: Sequence[Rental], now: float, on: Mapping[str, object]) -> list[Spent]:
    """What was spent so far, by node type and market. `on` has the machines that are on now."""
    kinds: dict[tuple[str, str], list[Rental]] = {}
    for rental in rentals:
        kinds.setdefault((rental.node_type, rental.market), []).append(rental)
    return [_spent(kind, rentals, now, on) for kind, rentals in sorted(kinds.items())]


def _spent(
    kind: tuple[str, str], rentals: Sequence[Rental], now: float, on: Mapping[str, object]
) -> Spent:
    hours = [max(0.0, r.until(now, on) - r.began) / 3600 for r in rentals]
    known = [
        length * r.price_per_hour
        for length, r in zip(hours, rentals, strict=True)
        if r.price_per_hour is not None
    ]
    return Spent(
        *kind,
        machines=len({r.id for r in rentals}),
        hours=sum(hours),
        cost=sum(known) if known else None,
        complete=all(r.ended is not None or r.id in on for r in rentals),
    )
