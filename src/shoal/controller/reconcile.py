"""Compares the known state with what was observed: which nodes changed, and what must be done
about them. Pure.

Observation only reports; the transition table decides. An impossible observation is an anomaly: it
leads to another listing, never to a crash.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from shoal.controller.lifecycle import Node, overdue_phase, with_phase
from shoal.controller.state import ControllerState
from shoal.core.node_phase import Phase
from shoal.providers.model import Instance, State
from shoal.ray_runtime.nodes import RayNode

# A listing may lag behind a launch: an instance younger than this is not counted as missing.
_LISTED_AFTER_S = 60.0
# Ray may take this long to report a node that has just joined.
_JOINED_AFTER_S = 15.0
# Draining a node in Ray, and reading that it drains, takes less than this.
_DRAINED_AFTER_S = 15.0
# How often a node's Ray is restarted before its instance is terminated.
MAX_RESTARTS = 3


NodeAction = Literal["bootstrap", "drain", "terminate"]


@dataclass(frozen=True)
class Observation:
    """What was observed. `instances` is None when the provider was not asked or did not answer, and
    `listed_at` is when it was last asked; `ray` is None while the GCS is unreachable. `busy` are
    the nodes for which a task is running."""

    now: float
    instances: Sequence[Instance] | None
    listed_at: float
    ray: Mapping[str, RayNode] | None
    busy: Collection[str] = ()


@dataclass
class Outcome:
    """Nodes that changed, actions by node id, and contradictions between the observations. The
    nodes in `restarted` are bootstrapped because their Ray was lost."""

    changed: dict[str, Node] = field(default_factory=dict)
    actions: dict[str, NodeAction] = field(default_factory=dict)
    anomalies: list[str] = field(default_factory=list)
    restarted: set[str] = field(default_factory=set)


def reconcile(state: ControllerState, observation: Observation) -> Outcome:
    """Join the known state with an observation."""
    outcome = Outcome()
    instances = observation.instances or ()
    listed = {i.id: i for i in instances if i.state is not State.TERMINATED}
    terminated = {i.id for i in instances if i.state is State.TERMINATED}
    for instance in listed.values():
        if instance.id not in state.nodes and instance.state is State.RUNNING:
            _adopt(outcome, instance, state, observation)
    for node in state.nodes.values():
        is_missing = (
            observation.instances is not None
            and node.id not in listed
            and _should_be_listed(node, observation)
        )
        if is_missing and (node.id in terminated or not _may_be_in_ray(node, observation)):
            _move(outcome, node, Phase.GONE, observation, "its instance no longer exists")
            continue
        if is_missing:
            text = f"{node.name} is in Ray but not in the provider's instance list"
            outcome.anomalies.append(text)
        if node.role == "worker" and _was_powered_off(node, listed.get(node.id), observation):
            _move(outcome, node, Phase.FAILED, observation, "its instance was powered off")
            outcome.actions[node.id] = "terminate"
        elif node.role == "worker" and node.id not in observation.busy:
            _reconcile_worker(outcome, node, observation)
        elif node.role == "head" and node.id not in observation.busy:
            _reconcile_head(outcome, node, observation)
    return outcome


def _adopt(
    outcome: Outcome, instance: Instance, state: ControllerState, observation: Observation
) -> None:
    """Add an instance of the cluster that is not in the state: `up` launched it, or its launch was
    interrupted."""
    gone = state.gone.get(instance.id)
    if gone is not None and gone.since > observation.listed_at:
        return  # the listing is older than its termination
    is_in_ray = observation.ray is not None and instance.id in observation.ray
    is_head = instance.role == "head"
    node = Node(
        id=instance.id,
        name=instance.name,
        node_type=instance.node_type,
        role=instance.role,
        phase=Phase.READY if is_in_ray else Phase.BOOTING,
        since=observation.now,
        created=instance.created_at or observation.now,
        address=instance.address,
        why="the head" if is_head else "it existed when the controller started",
        throttled=False,
        market=instance.market or "on-demand",
        zone=instance.zone,
        price_per_hour=instance.price_per_hour,
        extras_per_hour=instance.extras_per_hour,
    )
    outcome.changed[node.id] = node
    if not is_in_ray and observation.ray is not None and node.role == "worker":
        outcome.actions[node.id] = "bootstrap"


def _should_be_listed(node: Node, observation: Observation) -> bool:
    if node.phase is Phase.TERMINATING:
        return observation.listed_at > node.since
    return observation.listed_at - node.created > _LISTED_AFTER_S


def _was_powered_off(node: Node, instance: Instance | None, observation: Observation) -> bool:
    """Whether a node's instance is off although the controller did not stop it: it lost the
    cluster and could not terminate itself, or a user stopped it. It does not start again by
    itself, and its disks cost. For a while a listing shows a stopped worker that is being reused as
    still off."""
    return (
        instance is not None
        and instance.state is State.STOPPED
        and node.phase not in (Phase.TERMINATING, Phase.FAILED)
        and observation.listed_at - node.created > _LISTED_AFTER_S
    )


def _may_be_in_ray(node: Node, observation: Observation) -> bool:
    """Whether Ray reports a node that should be there, or cannot be asked: then a listing without
    it is incomplete."""
    should_be = node.phase in (Phase.READY, Phase.DRAINING)
    return should_be and (observation.ray is None or node.id in observation.ray)


def _reconcile_worker(outcome: Outcome, node: Node, observation: Observation) -> None:
    """A worker for which no task is running."""
    overdue = overdue_phase(node, observation.now)
    if node.phase in (Phase.TERMINATING, Phase.FAILED):
        if overdue is not None or node.phase is Phase.FAILED:
            outcome.actions[node.id] = "terminate"
        return
    if overdue is not None:
        _move(outcome, node, overdue, observation, f"deadline of phase {node.phase} exceeded")
        outcome.actions[node.id] = "terminate"
        return
    if observation.ray is None:
        return
    ray = observation.ray.get(node.id)
    if node.phase is Phase.DRAINING:
        # The raylet exits as soon as nothing runs on it any more. Only it knows: an actor without
        # resources is work too, and is in no resource count.
        if ray is None:
            outcome.actions[node.id] = "terminate"
        elif ray.status != "draining":
            _retry_drain(outcome, node, observation)
    elif node.phase is Phase.READY:
        if ray is None and observation.now - node.since > _JOINED_AFTER_S:
            _restart_or_fail(outcome, node, observation)
    elif ray is not None:
        _move(outcome, node, Phase.READY, observation, "")
    else:
        outcome.actions[node.id] = "bootstrap"


def _retry_drain(outcome: Outcome, node: Node, observation: Observation) -> None:
    """Ray does not drain a node that should drain: the controller was killed before it called Ray,
    or Ray was restarted."""
    if node.interruption:
        outcome.actions[node.id] = "drain"
    elif observation.now - node.since > _DRAINED_AFTER_S:
        _move(outcome, replace(node, ended=""), Phase.READY, observation, "")


def _restart_or_fail(outcome: Outcome, node: Node, observation: Observation) -> None:
    """Ray no longer reports the node as alive, and its instance still exists."""
    if node.restarts >= MAX_RESTARTS:
        text = f"its Ray was lost {node.restarts + 1} times"
        _move(outcome, node, Phase.FAILED, observation, text)
        outcome.actions[node.id] = "terminate"
        return
    restarted = replace(node, restarts=node.restarts + 1)
    _move(outcome, restarted, Phase.BOOTING, observation, "its Ray was lost; restarting it")
    outcome.restarted.add(node.id)
    outcome.actions[node.id] = "bootstrap"


def _reconcile_head(outcome: Outcome, node: Node, observation: Observation) -> None:
    """The head is ready while its GCS reports it; the head monitor restarts its Ray."""
    is_in_ray = observation.ray is not None and node.id in observation.ray
    if is_in_ray and node.phase is not Phase.READY:
        _move(outcome, node, Phase.READY, observation, "")


def _move(
    outcome: Outcome, node: Node, phase: Phase, observation: Observation, detail: str
) -> None:
    after = with_phase(node, phase, observation.now, detail)
    if after is None:
        outcome.anomalies.append(f"{node.name} is {node.phase} but was observed as {phase}")
        return
    if phase in (Phase.GONE, Phase.FAILED) and not after.ended:
        after = replace(after, ended=detail)
    outcome.changed[node.id] = after
