"""What the pending work needs: shapes with counts, gangs, and floors.

A million equal tasks are one row. Nothing here knows where the figures came from; amounts that
cannot be (negative, not a number, endless) are refused when a row is made, so that the planner
never meets one.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shoal.core.errors import ConfigError

Resources = Mapping[str, float]


@dataclass(frozen=True, order=True)
class LabelRule:
    """One condition on one label: its value is among `values`, or, if negated, is not."""

    key: str
    values: tuple[str, ...]
    negated: bool = False

    def admits(self, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels meets the condition."""
        return (labels.get(self.key) in self.values) != self.negated

    def __str__(self) -> str:
        return f"{self.key} {'not in' if self.negated else 'in'} {'|'.join(self.values)}"


Selector = tuple[LabelRule, ...]


@dataclass(frozen=True, order=True)
class Shape:
    """What one task, actor or bundle needs on one node.

    `selectors` are alternatives: a node must meet every rule of at least one. None at all means
    that any node will do. Make shapes with `Shape.of`, which checks and sorts.
    """

    resources: tuple[tuple[str, float], ...]
    selectors: tuple[Selector, ...] = ()

    @classmethod
    def of(cls, resources: Resources, selectors: Iterable[Iterable[LabelRule]] = ()) -> Shape:
        """The shape with these needs; zero amounts and empty selectors say nothing and go."""
        for name, amount in resources.items():
            if not math.isfinite(amount) or amount < 0:
                raise ConfigError(
                    f"a request for {amount} {name} cannot be met",
                    why="amounts are finite and not negative",
                )
        alternatives = [tuple(sorted(set(rules))) for rules in selectors]
        if any(not rules for rules in alternatives):
            alternatives = []  # one alternative without rules admits every node
        return cls(
            tuple(sorted((name, amount) for name, amount in resources.items() if amount > 0)),
            tuple(sorted(set(alternatives))),
        )

    def admits(self, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels may hold this shape."""
        return not self.selectors or any(
            all(rule.admits(labels) for rule in rules) for rules in self.selectors
        )

    def __str__(self) -> str:
        needs = ", ".join(f"{name}: {amount:g}" for name, amount in self.resources)
        where = " or ".join(" and ".join(map(str, rules)) for rules in self.selectors)
        return f"{{{needs}}}" + (f" where {where}" if where else "")


@dataclass(frozen=True, order=True)
class Request:
    """`count` copies of a shape."""

    shape: Shape
    count: int = 1

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ConfigError(f"{self.count} copies of {self.shape} cannot be asked for")


class Strategy(str, enum.Enum):
    """How a gang's bundles lie on nodes. The strict ones are demands, the others wishes."""

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
            raise ConfigError(f"{self.count} gangs cannot be asked for")

    def __str__(self) -> str:
        parts = [f"{self.bundles.count(b)} x {b}" for b in sorted(set(self.bundles))]
        return f"{self.strategy} gang of {' + '.join(parts)}"


@dataclass(frozen=True)
class Demand:
    """Everything that waits for room, and the floors: shapes that the whole cluster must be
    able to hold, busy or not (`request_resources`)."""

    requests: tuple[Request, ...] = ()
    gangs: tuple[Gang, ...] = ()
    floors: tuple[Request, ...] = ()
