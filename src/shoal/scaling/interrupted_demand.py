"""Work on machines that will be taken away: it still runs, and will have to run elsewhere."""

from __future__ import annotations

from collections.abc import Iterable

from shoal.core.node_phase import Phase
from shoal.scaling.demand import Request, Shape
from shoal.scaling.inputs import NodeView

# What a node has beside what it can be asked for: marks of single nodes and of placed gangs, and
# memory that is in use without having been asked for.
_MARKS = ("node:", "accelerator_type:", "bundle_group_")
_IN_A_GROUP = "_group_"
_UNASKED = "object_store_memory"
# Ray counts in ten-thousandths.
_LEAST = 0.0001


def interrupted_demand(nodes: Iterable[NodeView]) -> list[Request]:
    """What runs on the doomed ones among these nodes, each node's work as one request: whatever
    room takes over for a node has to hold all of it at once."""
    found = []
    for node in nodes:
        if node.doomed and node.phase in (Phase.READY, Phase.DRAINING):
            shape = Shape.of(_used(node))
            if shape.resources:
                found.append(Request(shape))
    return found


def _used(node: NodeView) -> dict[str, float]:
    used = {
        name: round(total - node.available.get(name, 0.0), 4)
        for name, total in node.total.items()
        if name != _UNASKED and _IN_A_GROUP not in name and not name.startswith(_MARKS)
    }
    return {name: amount for name, amount in used.items() if amount >= _LEAST}
