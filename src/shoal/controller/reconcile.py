"""What follows from seeing the world: which nodes moved, and what must be done about them. Pure.

Observation only reports; the lifecycle's table decides. What cannot be is told as an oddity, and
leads to another look, never to a crash.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from shoal.controller.lifecycle import Node, moved, overdue
from shoal.controller.state import ControllerState
from shoal.core.node_phase import Phase
from shoal.providers.model import Instance, State
from shoal.ray_runtime.nodes import RayNode

# A list may lag behind what was just created: a machine younger than this is not missed.
_LISTED_AFTER_S = 60.0
# Ray may take a moment to show a node that has just joined.
_JOINED_AFTER_S = 15.0
# Asking Ray to drain a node takes less than this, and so does seeing that it was done.
_DRAINED_AFTER_S = 15.0
# So often a node whose Ray was lost is brought back before its machine is given up.
MOST_TRIES = 3


Errand = Literal["bring up", "drain", "end"]


@dataclass(frozen=True)
class Observation:
    """What was seen. `instances` is None when the provider was not asked or did not answer, and
    `listed_at` is when it was asked; `ray` is None while the GCS is silent. `busy` are the nodes
    on which something is being done right now."""

    now: float
    instances: Sequence[Instance] | None
    listed_at: float
    ray: Mapping[str, RayNode] | None
    busy: Collection[str] = ()


@dataclass
class Outcome:
    """Nodes that changed, what is to be done on which, and what is odd."""

    changed: dict[str, Node] = field(default_factory=dict)
    errands: dict[str, Errand] = field(default_factory=dict)
    oddities: list[str] = field(default_factory=list)


def reconcile(memory: ControllerState, sight: Observation) -> Outcome:
    """Join what is remembered with what is seen."""
    outcome = Outcome()
    listed = {i.id: i for i in sight.instances or () if i.state is not State.TERMINATED}
    ended = {i.id for i in sight.instances or () if i.state is State.TERMINATED}
    for instance in listed.values():
        if instance.id not in memory.nodes and instance.state is State.RUNNING:
            _adopt(outcome, instance, memory, sight)
    for node in memory.nodes.values():
        missed = sight.instances is not None and node.id not in listed and _is_missed(node, sight)
        if missed and (node.id in ended or not _may_serve(node, sight)):
            _move(outcome, node, Phase.GONE, sight, "its machine is no longer there")
            continue
        if missed:
            outcome.oddities.append(f"{node.name} is not in the provider's list, and in Ray it is")
        if node.role == "worker" and node.id not in sight.busy:
            _look_after(outcome, node, sight)
        elif node.role == "head":
            _follow_head(outcome, node, sight)
    return outcome


def _adopt(
    outcome: Outcome, instance: Instance, memory: ControllerState, sight: Observation
) -> None:
    """A machine of the cluster that is not remembered: one that `up` made, or one whose launch
    was interrupted."""
    if instance.id in memory.gone and memory.gone[instance.id].since > sight.listed_at:
        return  # the list is older than its end
    serves = sight.ray is not None and instance.id in sight.ray
    node = Node(
        id=instance.id,
        name=instance.name,
        node_type=instance.node_type,
        role=instance.role,
        phase=Phase.READY if serves else Phase.BOOTING,
        since=sight.now,
        created=instance.created_at or sight.now,
        address=instance.address,
        why="the head" if instance.role == "head" else "it was there when the controller started",
        throttled=False,
        market=instance.market or "on-demand",
        zone=instance.zone,
        price_per_hour=instance.price_per_hour,
    )
    outcome.changed[node.id] = node
    if not serves and sight.ray is not None and node.role == "worker":
        outcome.errands[node.id] = "bring up"


def _is_missed(node: Node, sight: Observation) -> bool:
    if node.phase is Phase.TERMINATING:
        return sight.listed_at > node.since
    return sight.listed_at - node.created > _LISTED_AFTER_S


def _may_serve(node: Node, sight: Observation) -> bool:
    """Whether Ray knows a node that is to be there, or cannot be asked: a list without it is then
    one that lost something."""
    stays = node.phase in (Phase.READY, Phase.DRAINING)
    return stays and (sight.ray is None or node.id in sight.ray)


def _look_after(outcome: Outcome, node: Node, sight: Observation) -> None:
    """A worker on which nothing is being done at the moment."""
    late = overdue(node, sight.now)
    if node.phase in (Phase.TERMINATING, Phase.FAILED):
        if late is not None or node.phase is Phase.FAILED:
            outcome.errands[node.id] = "end"
        return
    if late is not None:
        _move(outcome, node, late, sight, f"{node.phase} for longer than it may")
        outcome.errands[node.id] = "end"
        return
    if sight.ray is None:
        return
    ray = sight.ray.get(node.id)
    if node.phase is Phase.DRAINING:
        # Ray's daemon leaves by itself as soon as nothing runs there any more. Only it knows: an
        # actor that holds no resource is work as well, and shows in no figure.
        if ray is None:
            outcome.errands[node.id] = "end"
        elif ray.status != "draining":
            _not_draining(outcome, node, sight)
    elif node.phase is Phase.READY:
        if ray is None and sight.now - node.since > _JOINED_AFTER_S:
            _lost(outcome, node, sight)
    elif ray is not None:
        _move(outcome, node, Phase.READY, sight, "")
    else:
        outcome.errands[node.id] = "bring up"


def _not_draining(outcome: Outcome, node: Node, sight: Observation) -> None:
    """Ray was not told, or has forgotten: whoever was to ask it was killed before it could."""
    if node.notice:
        outcome.errands[node.id] = "drain"
    elif sight.now - node.since > _DRAINED_AFTER_S:
        _move(outcome, replace(node, ended=""), Phase.READY, sight, "")


def _lost(outcome: Outcome, node: Node, sight: Observation) -> None:
    """Ray no longer counts the node as alive, and its machine is still there."""
    if node.tries >= MOST_TRIES:
        text = f"its Ray was lost {node.tries + 1} times"
        _move(outcome, node, Phase.FAILED, sight, text)
        outcome.errands[node.id] = "end"
        return
    again = replace(node, tries=node.tries + 1)
    _move(outcome, again, Phase.BOOTING, sight, "its Ray was lost, and is started again")
    outcome.errands[node.id] = "bring up"


def _follow_head(outcome: Outcome, node: Node, sight: Observation) -> None:
    """The head is ready while its GCS knows it; bringing it back is the loop's own business."""
    if sight.ray is not None and node.id in sight.ray and node.phase is not Phase.READY:
        _move(outcome, node, Phase.READY, sight, "")


def _move(outcome: Outcome, node: Node, phase: Phase, sight: Observation, detail: str) -> None:
    after = moved(node, phase, sight.now, detail)
    if after is None:
        outcome.oddities.append(f"{node.name} is {node.phase} and was seen {phase}")
        return
    if phase in (Phase.GONE, Phase.FAILED) and not after.ended:
        after = replace(after, ended=detail)
    outcome.changed[node.id] = after
