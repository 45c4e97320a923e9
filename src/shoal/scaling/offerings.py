"""Which machines can be bought now, at what price, and which are avoided for a while.

An offer that failed is left alone for a time that doubles with every failure in a row, and is
then tried again: capacity comes back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shoal.core.backoff import backoff_delay
from shoal.scaling.demand import Resources
from shoal.scaling.inputs import FailureKind, History, LaunchFailure, Market, Offering
from shoal.spec.cluster_spec import ClusterSpec, NodeType

FIRST_REST_S: Mapping[FailureKind, float] = {"capacity": 60.0, "quota": 300.0, "setup": 30.0}
LONGEST_REST_S = 900.0
# Failures further apart than this are not "in a row".
MEMORY_S = 3600.0

# What a machine is taken to cost when nobody knows: near enough to the large clouds' prices to
# rank sizes, and to keep CPU work off machines with accelerators.
_UNKNOWN_PER_UNIT = {"CPU": 0.04, "memory": 0.005 / 2**30, "object_store_memory": 0.0}
_UNKNOWN_PER_SPECIAL = 1.0
_ORDINARY = frozenset(_UNKNOWN_PER_UNIT)


@dataclass(frozen=True)
class Machine:
    """A node type on one market in one zone, with its price for deciding (guessed if need be)."""

    node_type: str
    market: Market
    zone: str
    price: float
    priced: bool
    resources: Resources
    labels: Mapping[str, str]
    priority: int = 0


@dataclass(frozen=True)
class OfferingBackoff:
    """An offer that is avoided until a moment, because of a failure."""

    offer: Offering
    until: float
    last: LaunchFailure


def is_special(resource: str) -> bool:
    """Whether a resource is scarce: neither CPU nor memory, nor one that marks a single node."""
    return resource not in _ORDINARY and not resource.startswith(("node:", "accelerator_type:"))


def guessed_price(resources: Resources) -> float:
    """A price to decide by, for a machine whose own is not known."""
    price = sum(
        amount * _UNKNOWN_PER_UNIT.get(name, _UNKNOWN_PER_SPECIAL if is_special(name) else 0.0)
        for name, amount in sorted(resources.items())
    )
    return max(price, 0.001)


def resources_of(node_type: NodeType, offers: Iterable[Offering]) -> Resources:
    """What a node of this type will have: as the YAML declares, else as an offer knows."""
    known: dict[str, float] = {}
    for offer in offers:
        known.update(offer.resources)
    known.update(node_type.resources)
    return known


class Offerings:
    """What is for sale at one moment. `machines` holds one entry per type, market and zone that
    is not resting; `resting` holds the rest. Of types that were given up there is neither, and
    `given_up` says why. `resources` and `price` are those of each type, whether it can be had just
    now or not."""

    def __init__(
        self, spec: ClusterSpec, offers: Iterable[Offering], history: History, now: float
    ) -> None:
        by_type: dict[str, list[Offering]] = {name: [] for name in spec.node_types}
        for offer in offers:
            if offer.node_type in by_type:
                by_type[offer.node_type].append(offer)
        self.resources: dict[str, Resources] = {}
        self.resting: dict[str, list[OfferingBackoff]] = {}
        self.given_up = history.given_up
        self.machines: list[Machine] = []
        self.price: dict[str, float] = {}
        self._priced: set[str] = set()
        self._labels: dict[tuple[str, str, str], Mapping[str, str]] = {}
        for name, node_type in sorted(spec.node_types.items()):
            self.resources[name] = resources_of(node_type, by_type[name])
            for offer in sorted(by_type[name] or [Offering(name)], key=_offer_order):
                machine = _machine(node_type, offer, self.resources[name])
                self.price[name] = min(machine.price, self.price.get(name, machine.price))
                self._labels[name, offer.market, offer.zone] = machine.labels
                if machine.priced:
                    self._priced.add(name)
                if name in self.given_up:
                    continue
                rest = _rest(offer, history.failures, now)
                if rest is None:
                    self.machines.append(machine)
                else:
                    self.resting.setdefault(name, []).append(rest)

    def labels(self, node_type: str, market: str, zone: str) -> Mapping[str, str]:
        """The labels that a machine bought so will carry."""
        return self._labels.get((node_type, market, zone), {})

    def is_priced(self, node_type: str) -> bool:
        """Whether any offer of a type says what it costs."""
        return node_type in self._priced

    def label_sets(self, node_type: str) -> list[Mapping[str, str]]:
        """The labels of every offer of a type."""
        return [labels for key, labels in self._labels.items() if key[0] == node_type]

    def cheapest(self, node_type: str) -> Machine | None:
        """The best offer for a type right now, if it has any that is not resting."""
        return min(
            (m for m in self.machines if m.node_type == node_type),
            key=lambda m: (m.price, m.market, m.zone),
            default=None,
        )


def forget(failures: Iterable[LaunchFailure], now: float) -> tuple[LaunchFailure, ...]:
    """The failures that still matter."""
    return tuple(f for f in failures if now - f.at < MEMORY_S)


def _offer_order(offer: Offering) -> tuple[str, str, float]:
    price = offer.price_per_hour
    return (offer.market, offer.zone, -1.0 if price is None else price)


def _machine(node_type: NodeType, offer: Offering, resources: Resources) -> Machine:
    price, guess = offer.price_per_hour, guessed_price(resources)
    return Machine(
        node_type=node_type.name,
        market=offer.market,
        zone=offer.zone,
        # a machine that costs nothing still has a size, and smaller is better
        price=guess if price is None else max(price, guess * 1e-6),
        priced=price is not None,
        resources=resources,
        labels={**node_type.labels, **offer.labels},
        priority=node_type.priority,
    )


def _rest(offer: Offering, failures: Iterable[LaunchFailure], now: float) -> OfferingBackoff | None:
    """How long the failures of this offer keep it out, if they still do."""
    own = sorted((f for f in forget(failures, now) if _is_of(f, offer)), key=lambda f: f.at)
    if not own:
        return None
    last = own[-1]
    rest = backoff_delay(len(own) - 1, FIRST_REST_S[last.kind], LONGEST_REST_S)
    return OfferingBackoff(offer, last.at + rest, last) if now < last.at + rest else None


def _is_of(failure: LaunchFailure, offer: Offering) -> bool:
    """Whether a failure says something of an offer. A setup that fails does so wherever the
    machine came from; all else is about one market in one zone."""
    if failure.node_type != offer.node_type:
        return False
    where = (failure.market, failure.zone) == (offer.market, offer.zone)
    return where or failure.kind == "setup"
