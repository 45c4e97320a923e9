"""Which instances can be launched now, at what price, and which offerings are in backoff.

An offering that failed is not used for a time that doubles with every consecutive failure, and is
then tried again: capacity comes back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shoal.core.backoff import backoff_delay
from shoal.scaling.demand import Resources
from shoal.scaling.inputs import FailureKind, History, LaunchFailure, Market, Offering
from shoal.spec.cluster_spec import ClusterSpec, NodeType

INITIAL_BACKOFF_S: Mapping[FailureKind, float] = {"capacity": 60.0, "quota": 300.0, "setup": 30.0}
MAX_BACKOFF_S = 900.0
# Older failures do not count towards the backoff.
FAILURE_WINDOW_S = 3600.0

# Assumed prices where none is known. They rank instance sizes, and an accelerator costs more than
# the largest CPU instance, so that CPU work stays off accelerator nodes.
_ASSUMED_PER_UNIT = {"CPU": 0.04, "memory": 0.005 / 2**30, "object_store_memory": 0.0}
_COMMON_RESOURCES = frozenset(_ASSUMED_PER_UNIT)
_ACCELERATORS = frozenset({"GPU", "TPU", "HPU", "NPU", "RBLN", "neuron_cores"})
_ASSUMED_PER_ACCELERATOR = 30.0
# A custom resource costs nothing, but work that does not need it prefers a node without it.
_ASSUMED_FOR_CUSTOM = 0.0001


@dataclass(frozen=True)
class InstanceOption:
    """A node type on one market in one zone, with its resources, labels, and the price to decide by
    (estimated if `is_price_known` is false)."""

    node_type: str
    market: Market
    zone: str
    price: float
    is_price_known: bool
    resources: Resources
    labels: Mapping[str, str]
    priority: int = 0


@dataclass(frozen=True)
class OfferingBackoff:
    """An offering that is not used until a time, because of a failure."""

    offering: Offering
    until: float
    last_failure: LaunchFailure


def is_scarce(resource: str) -> bool:
    """Whether a resource is scarce: not CPU or memory, nor a marker of a single node."""
    return resource not in _COMMON_RESOURCES and not resource.startswith(
        ("node:", "accelerator_type:")
    )


def estimated_price(resources: Resources) -> float:
    """A price per hour to decide by, for resources whose price is unknown."""
    price = 0.0
    for name, amount in sorted(resources.items()):
        if name in _ACCELERATORS:
            price += amount * _ASSUMED_PER_ACCELERATOR
        elif name in _ASSUMED_PER_UNIT:
            price += amount * _ASSUMED_PER_UNIT[name]
        elif amount > 0 and is_scarce(name):
            price += _ASSUMED_FOR_CUSTOM
    return max(price, 0.001)


def node_type_resources(node_type: NodeType, offerings: Iterable[Offering]) -> Resources:
    """The resources of a node of this type: as the YAML declares, else as the offerings have."""
    resources: dict[str, float] = {}
    for offering in offerings:
        resources.update(offering.resources)
    resources.update(node_type.resources)
    return resources


class Offerings:
    """The offerings at one time. `options` has one entry per node type, market and zone that is not
    in backoff; `backing_off` has the others by node type, and `options_after_backoff` all of them.
    Types in `blocked`, with the reason, are only in `all_options`. `resources` and `price` are
    known for every type, whether it can be launched now or not."""

    def __init__(
        self, spec: ClusterSpec, offerings: Iterable[Offering], history: History, now: float
    ) -> None:
        by_type: dict[str, list[Offering]] = {name: [] for name in spec.node_types}
        for offering in offerings:
            if offering.node_type in by_type:
                by_type[offering.node_type].append(offering)
        self.resources: dict[str, Resources] = {}
        self.backing_off: dict[str, list[OfferingBackoff]] = {}
        self.blocked = history.blocked
        self.options: list[InstanceOption] = []
        self.options_after_backoff: list[InstanceOption] = []
        self.all_options: list[InstanceOption] = []
        self.price: dict[str, float] = {}
        self._priced_types: set[str] = set()
        self._labels: dict[tuple[str, str, str], Mapping[str, str]] = {}
        for name, node_type in sorted(spec.node_types.items()):
            self.resources[name] = node_type_resources(node_type, by_type[name])
            for offering in sorted(by_type[name] or [Offering(name)], key=_offering_order):
                option = _option(node_type, offering, self.resources[name])
                self.price[name] = min(option.price, self.price.get(name, option.price))
                self._labels[name, offering.market, offering.zone] = option.labels
                if option.is_price_known:
                    self._priced_types.add(name)
                self.all_options.append(option)
                if name in self.blocked:
                    continue
                self.options_after_backoff.append(option)
                backoff = _backoff(offering, history.failures, now)
                if backoff is None:
                    self.options.append(option)
                else:
                    self.backing_off.setdefault(name, []).append(backoff)

    def labels(self, node_type: str, market: str, zone: str) -> Mapping[str, str]:
        """The labels that an instance of this offering will have."""
        return self._labels.get((node_type, market, zone), {})

    def is_priced(self, node_type: str) -> bool:
        """Whether any offering of a type has a known price."""
        return node_type in self._priced_types

    def label_sets(self, node_type: str) -> list[Mapping[str, str]]:
        """The labels of every offering of a type."""
        return [labels for key, labels in self._labels.items() if key[0] == node_type]

    def cheapest(self, node_type: str) -> InstanceOption | None:
        """The cheapest option of a type that is not in backoff, if any."""
        return min(
            (o for o in self.options if o.node_type == node_type),
            key=lambda o: (o.price, o.market, o.zone),
            default=None,
        )


def recent_failures(failures: Iterable[LaunchFailure], now: float) -> tuple[LaunchFailure, ...]:
    """The failures that still count."""
    return tuple(f for f in failures if now - f.at < FAILURE_WINDOW_S)


def _offering_order(offering: Offering) -> tuple[str, str, float]:
    price = offering.price_per_hour
    return (offering.market, offering.zone, -1.0 if price is None else price)


def _option(node_type: NodeType, offering: Offering, resources: Resources) -> InstanceOption:
    price, estimate = offering.price_per_hour, estimated_price(resources)
    return InstanceOption(
        node_type=node_type.name,
        market=offering.market,
        zone=offering.zone,
        # a free instance still has a size, and smaller is better
        price=estimate if price is None else max(price, estimate * 1e-6),
        is_price_known=price is not None,
        resources=resources,
        labels={**node_type.labels, **offering.labels},
        priority=node_type.priority,
    )


def _backoff(
    offering: Offering, failures: Iterable[LaunchFailure], now: float
) -> OfferingBackoff | None:
    """The backoff of this offering after its failures, if it is not over."""
    own_failures = sorted(
        (f for f in recent_failures(failures, now) if _concerns(f, offering)), key=lambda f: f.at
    )
    if not own_failures:
        return None
    last = own_failures[-1]
    until = last.at + backoff_delay(
        len(own_failures) - 1, INITIAL_BACKOFF_S[last.kind], MAX_BACKOFF_S
    )
    return OfferingBackoff(offering, until, last) if now < until else None


def _concerns(failure: LaunchFailure, offering: Offering) -> bool:
    """Whether a failure affects an offering. A failed setup affects the node type everywhere;
    anything else one market in one zone."""
    if failure.node_type != offering.node_type:
        return False
    is_same_place = (failure.market, failure.zone) == (offering.market, offering.zone)
    return is_same_place or failure.kind == "setup"
