"""What pending work needs: shapes with counts, gangs, floors, and the work on interrupted nodes.

A million equal tasks are one row. Nothing here knows where the figures come from. Invalid amounts
(negative, NaN, infinite) raise when a row is made, so that the planner never sees one.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.core.errors import ConfigError
from shoal.core.node_phase import Phase

if TYPE_CHECKING:
    from shoal.scaling.inputs import NodeView

Resources = Mapping[str, float]

# Resources that tasks do not request: markers of nodes and of placement group bundles, and object
# store memory, which is in use without being requested.
_NODE_MARKERS = ("node:", "accelerator_type:", "bundle_group_")
_PLACEMENT_GROUP = "_group_"
_OBJECT_STORE = "object_store_memory"
# Ray counts in ten-thousandths of a resource.
_MIN_AMOUNT = 0.0001


@dataclass(frozen=True, order=True)
class LabelRule:
    """One condition on one label: its value is in `values` or, if negated, is not."""

    key: str
    values: tuple[str, ...]
    negated: bool = False

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels meets the condition."""
        return (labels.get(self.key) in self.values) != self.negated

    def __str__(self) -> str:
        return f"{self.key} {'not in' if self.negated else 'in'} {'|'.join(self.values)}"


Selector = tuple[LabelRule, ...]


@dataclass(frozen=True, order=True)
class Shape:
    """What one task, actor or bundle needs on one node.

    `selectors` are alternatives in order of preference: a node must meet every rule of at least
    one. Without selectors, any node matches. Make shapes with `Shape.of`, which validates.
    """

    resources: tuple[tuple[str, float], ...]
    selectors: tuple[Selector, ...] = ()

    @classmethod
    def of(cls, resources: Resources, selectors: Iterable[Iterable[LabelRule]] = ()) -> Shape:
        """The shape with these needs. Zero amounts are dropped, and so is every selector after one
        without rules, which matches every node."""
        for name, amount in resources.items():
            if not math.isfinite(amount) or amount < 0:
                raise ConfigError(
                    f"invalid request for {amount} {name}",
                    why="amounts must be finite and not negative",
                )
        alternatives: dict[Selector, None] = {}
        for rules in selectors:
            alternatives[tuple(sorted(set(rules)))] = None
            if () in alternatives:
                break
        return cls(
            tuple(sorted((name, amount) for name, amount in resources.items() if amount > 0)),
            () if next(iter(alternatives), None) == () else tuple(alternatives),
        )

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels may hold this shape."""
        return self.preference(labels) is not None

    def preference(self, labels: Mapping[str, str]) -> int | None:
        """The position of the first selector that a node with these labels meets, if any."""
        if not self.selectors:
            return 0
        for position, rules in enumerate(self.selectors):
            if all(rule.matches(labels) for rule in rules):
                return position
        return None

    def __str__(self) -> str:
        needs = ", ".join(f"{name}: {amount:g}" for name, amount in self.resources)
        labels = " or ".join(
            " and ".join(map(str, rules)) or "any node" for rules in self.selectors
        )
        return f"{{{needs}}}" + (f" where {labels}" if labels else "")


@dataclass(frozen=True, order=True)
class Request:
    """`count` copies of a shape."""

    shape: Shape
    count: int = 1

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ConfigError(
                f"invalid request for {self.count} x {self.shape}: the count is negative"
            )


class Strategy(str, enum.Enum):
    """The placement strategy of a gang's bundles. Only the strict ones are binding."""

    PACK = "PACK"
    SPREAD = "SPREAD"
    STRICT_PACK = "STRICT_PACK"
    STRICT_SPREAD = "STRICT_SPREAD"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Gang:
    """Bundles that start together or not at all (a placement group)."""

    bundles: tuple[Shape, ...]
    strategy: Strategy = Strategy.PACK
    count: int = 1

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ConfigError(
                f"invalid request for {self.count} placement groups: the count is negative"
            )

    def __str__(self) -> str:
        parts = [f"{self.bundles.count(b)} x {b}" for b in sorted(set(self.bundles))]
        return f"placement group ({self.strategy}: {' + '.join(parts)})"


@dataclass(frozen=True)
class Demand:
    """Everything that is pending, and the floors: shapes that the cluster as a whole must be able
    to hold, busy or not (`request_resources`)."""

    requests: tuple[Request, ...] = ()
    gangs: tuple[Gang, ...] = ()
    floors: tuple[Request, ...] = ()


def floor_name(shape: Shape) -> str:
    """How a floor is called in reasons and in the status."""
    return f"request_resources {shape}"


def interrupted_demand(nodes: Iterable[NodeView]) -> list[Request]:
    """The work on interrupted nodes, one request per node: it still runs, but must move. The
    replacement of a node has to hold all of its work at once."""
    requests = []
    for node in nodes:
        if node.interrupted and node.phase in (Phase.READY, Phase.DRAINING):
            shape = Shape.of(_used(node))
            if shape.resources:
                requests.append(Request(shape))
    return requests


def _used(node: NodeView) -> dict[str, float]:
    used = {
        name: round(total - node.available.get(name, 0.0), 4)
        for name, total in node.total.items()
        if name != _OBJECT_STORE
        and _PLACEMENT_GROUP not in name
        and not name.startswith(_NODE_MARKERS)
    }
    return {name: amount for name, amount in used.items() if amount >= _MIN_AMOUNT}
