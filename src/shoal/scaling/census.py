"""The cluster as it stands, counted once: who is there, who is on the way, how much room is
left, and how many more there may be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence

from shoal.events import Phase
from shoal.scaling.buy import special_of
from shoal.scaling.demand import Resources
from shoal.scaling.frame import Frame, Vector
from shoal.scaling.machines import Shop, guessed_price
from shoal.scaling.room import Room
from shoal.scaling.state import COUNTED, ON_THE_WAY, NodeView
from shoal.spec.model import ClusterSpec

_STAGE = {phase: number for number, phase in enumerate(Phase)}


class Census:
    """The nodes sorted by what can be done with them. Those that are `leaving` hold no work but
    count against the limits, like those that are draining."""

    def __init__(
        self,
        spec: ClusterSpec,
        shop: Shop,
        nodes: Sequence[NodeView],
        leaving: Container[str] = frozenset(),
    ) -> None:
        self.spec = spec
        self._shop = shop
        nodes = sorted(nodes, key=lambda n: n.id)
        self.workers = [n for n in nodes if not n.is_head and n.phase in COUNTED]
        serving = (n for n in nodes if n.phase is Phase.READY or n.phase in ON_THE_WAY)
        self.serving = [n for n in serving if n.id not in leaving]
        self.ready = [n for n in self.serving if n.phase is Phase.READY]
        self.on_the_way = [n for n in self.serving if n.phase in ON_THE_WAY]
        self.by_type = Counter(n.node_type for n in self.workers)
        self.serving_by_type = Counter(n.node_type for n in self.serving if not n.is_head)

    def limits(self) -> dict[str, int]:
        """How many more of each type its own maximum allows."""
        return {
            name: max(0, t.max_workers - self.by_type[name])
            for name, t in self.spec.node_types.items()
        }

    def slots(self) -> int:
        """How many more workers the cluster's maximum allows."""
        return max(0, self.spec.scaling.max_workers - len(self.workers))

    def total_of(self, node: NodeView) -> Resources:
        """What a node has in all: its own account, or its type's promise."""
        return node.total or self._shop.resources.get(node.node_type, {})

    def free_of(self, node: NodeView) -> Resources:
        """What is free on a node; all of it while it is on its way."""
        if node.phase is Phase.READY and node.total:
            return node.available
        return self.total_of(node)

    def labels_of(self, node: NodeView) -> Mapping[str, str]:
        """A node's labels: its own once it has any, else those its offer promises."""
        return node.labels or self._shop.labels(node.node_type, node.market, node.zone)

    def price_of(self, node: NodeView) -> float:
        """What a node costs an hour: as known for itself, else for its type, else a guess."""
        if node.price_per_hour is not None:
            return node.price_per_hour
        price = self._shop.price.get(node.node_type)
        return guessed_price(self.total_of(node)) if price is None else price

    def first_to_go(self, node: NodeView) -> tuple[object, ...]:
        """Sorts those that have come least far first, then the dearest, then the longest idle."""
        return (_STAGE[node.phase], -self.price_of(node), -node.idle_s, node.id)

    def is_priced(self, node: NodeView) -> bool:
        """Whether the price of a node is known rather than guessed."""
        return node.price_per_hour is not None or self._shop.is_priced(node.node_type)

    def room(
        self, frame: Frame, *, whole: bool = False, without: Container[str] = frozenset()
    ) -> Room:
        """The free room on all serving nodes, or, if `whole`, all that they have in all."""
        room = Room(frame)
        # Nodes of a type nearly always have the same totals: encode those once.
        known: dict[str, tuple[Resources, Vector, int, float]] = {}
        for node in self.serving:
            if node.id in without:
                continue
            total = self.total_of(node)
            type_ = known.get(node.node_type)
            if type_ is None or type_[0] != total:
                price = self._shop.price.get(node.node_type)
                type_ = (
                    total,
                    frame.room(total),
                    special_of(frame, total),
                    guessed_price(total) if price is None else price,
                )
                known[node.node_type] = type_
            _, capacity, special, price = type_
            free = capacity if whole else frame.room(self.free_of(node))
            labels = frame.label_class(self.labels_of(node))
            room.add(free, labels, special, price, free == capacity, 1)
        return room
