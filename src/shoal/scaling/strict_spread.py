"""STRICT_SPREAD gangs: every bundle on a different node, found as a matching of minimum cost.

Bundles are matched to existing nodes and to instances that may be launched. Existing nodes cost
nothing, so instances are launched only for bundles that no existing node is left for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shoal.scaling.free_capacity import FreeCapacity, Row
from shoal.scaling.greedy_packing import BinType
from shoal.scaling.resource_vectors import Item

# Of the nodes that suit a bundle, so many more than the gang has bundles cannot matter.
_MAX_EDGES = 20_000


@dataclass(frozen=True)
class LaunchChoices:
    """Instances that may be launched for a gang. `costs` has, for each bundle, the options that can
    hold it with the cost of using one; `limits` are per group of bin types, and in total."""

    bin_types: Sequence[BinType]
    costs: Sequence[Mapping[int, int]]
    limits: Sequence[int]
    total_limit: int


def place_gang(
    free_capacity: FreeCapacity,
    bundles: Sequence[Item],
    choices: LaunchChoices | None = None,
    *,
    evenly: bool = False,
) -> dict[int, int] | None:
    """Place one gang, whose bundles are items with counts, whole or not at all: on the fullest
    nodes that can hold them or, if `evenly`, on the emptiest. Returns how many instances of each
    option it needs beside the existing nodes; None if it cannot be placed."""
    rows = [free_capacity.candidates(item) for item in bundles]
    if evenly:
        rows = [sorted(some, key=lambda row: -row.slack) for some in rows]
    taken = _first_fit(bundles, rows)
    if taken is None and (choices or len(bundles) > 1):
        taken = _matching(bundles, rows, choices)
    if taken is None:
        return None
    launched: dict[int, int] = {}
    for (_, place), n in taken.items():
        if isinstance(place, int) and choices:
            launched[place] = launched.get(place, 0) + n
    for (index, place), n in taken.items():
        row = place if isinstance(place, Row) else None
        if row is None and choices:
            bin_type = choices.bin_types[place]  # type: ignore[index]
            free_capacity.add(
                bin_type.capacity, bin_type.labels, bin_type.scarce, bin_type.price, True, n
            )
            row = free_capacity.empty_row(bin_type)
        if row is not None:
            free_capacity.allocate(row, bundles[index], 1, n)
    return launched


_Taken = dict[tuple[int, "Row | int"], int]


def _first_fit(bundles: Sequence[Item], rows: Sequence[Sequence[Row]]) -> _Taken | None:
    """The best nodes for the hardest bundles, without looking ahead; enough for most gangs."""
    taken: _Taken = {}
    used: dict[Row, int] = {}
    for index in sorted(range(len(bundles)), key=lambda i: bundles[i].hardness):
        left = bundles[index].count
        for row in rows[index]:
            n = min(left, row.count - used.get(row, 0))
            if n > 0:
                taken[index, row] = n
                used[row] = used.get(row, 0) + n
                left -= n
            if not left:
                break
        if left:
            return None
    return taken


def _matching(
    bundles: Sequence[Item], rows: Sequence[Sequence[Row]], choices: LaunchChoices | None
) -> _Taken | None:
    size = sum(item.count for item in bundles)
    places: dict[Row | int, int] = {}
    flow = _Flow()
    source, sink, all_launched = flow.node(), flow.node(), flow.node()
    groups: dict[int, int] = {}
    if choices:
        flow.edge(all_launched, sink, choices.total_limit, 0)
    edges: dict[tuple[int, Row | int], int] = {}
    for index, item in enumerate(bundles):
        bundle = flow.node()
        flow.edge(source, bundle, item.count, 0)
        nodes = 0
        for rank, row in enumerate(rows[index]):
            if row not in places:
                places[row] = flow.node()
                flow.edge(places[row], sink, row.count, 0)
            edges[index, row] = flow.edge(bundle, places[row], item.count, rank)
            nodes += row.count
            if nodes >= size or len(edges) > _MAX_EDGES:
                break
        if not choices:
            continue
        for option, cost in choices.costs[index].items():
            if option not in places:
                group = choices.bin_types[option].group
                if group not in groups:
                    groups[group] = flow.node()
                    flow.edge(groups[group], all_launched, choices.limits[group], 0)
                places[option] = groups[group]
            # An existing node, however badly it suits, costs less than an instance.
            edges[index, option] = flow.edge(bundle, places[option], item.count, cost + _MAX_EDGES)
    if flow.run(source, sink, size) < size:
        return None
    return {key: n for key, edge in edges.items() if (n := flow.amount(edge))}


class _Flow:
    """A flow of minimum cost by successive shortest paths."""

    def __init__(self) -> None:
        self._edges: list[tuple[int, int, int]] = []  # from, to, cost; the reverse edge follows
        self._capacity: list[int] = []
        self._out: list[list[int]] = []

    def node(self) -> int:
        self._out.append([])
        return len(self._out) - 1

    def edge(self, start: int, end: int, capacity: int, cost: int) -> int:
        edge = len(self._edges)
        self._edges += [(start, end, cost), (end, start, -cost)]
        self._capacity += [capacity, 0]
        self._out[start].append(edge)
        self._out[end].append(edge + 1)
        return edge

    def amount(self, edge: int) -> int:
        """How much flows through an edge."""
        return self._capacity[edge ^ 1]

    def run(self, source: int, sink: int, wanted: int) -> int:
        """How much of the wanted amount flows."""
        total = 0
        while total < wanted:
            path = self._shortest_path(source, sink)
            if not path:
                break
            amount = min(wanted - total, *(self._capacity[edge] for edge in path))
            for edge in path:
                self._capacity[edge] -= amount
                self._capacity[edge ^ 1] += amount
            total += amount
        return total

    def _shortest_path(self, source: int, sink: int) -> list[int]:
        cost = {source: 0}
        arrived_by: dict[int, int] = {}
        queue = deque([source])
        while queue:
            start = queue.popleft()
            for edge in self._out[start]:
                _, end, step = self._edges[edge]
                if self._capacity[edge] and cost[start] + step < cost.get(
                    end, cost[start] + step + 1
                ):
                    cost[end] = cost[start] + step
                    arrived_by[end] = edge
                    queue.append(end)
        path: list[int] = []
        while sink in arrived_by:
            path.append(arrived_by[sink])
            sink = self._edges[path[-1]][0]
        return path
