"""Explains the controller: its latest decisions, the history of a node, or the pending demand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal.cluster.handle import ClusterHandle
from shoal.controller.state import Decision
from shoal.controller.status_file import WaitingDemand
from shoal.controller.status_reader import StatusReport, read_nodes, read_status
from shoal.core.errors import NotFoundError
from shoal.core.node_phase import Phase
from shoal.ops.context import Context
from shoal.spec.cluster_spec import ClusterSpec


@dataclass(frozen=True)
class NodeHistory:
    """One node: why it was launched, its phase, and why it was terminated, if it was."""

    name: str
    node_type: str
    phase: str
    since: float
    why: str
    ended: str
    detail: str


@dataclass(frozen=True)
class Explanation:
    """The controller's latest decisions, the nodes of a name (the latest first), or the pending
    demand. Not `alive` if the controller is not running, and the report is its last one. `now` is
    the time by the head's clock, as all times here are."""

    decisions: tuple[Decision, ...] = ()
    nodes: tuple[NodeHistory, ...] = ()
    waiting: tuple[WaitingDemand, ...] = ()
    alive: bool = True
    now: float = 0.0


async def why(
    ctx: Context, spec: ClusterSpec, node: str | None = None, *, pending: bool = False
) -> Explanation:
    """Read the controller's report. Raises `NotFoundError` when there is no controller or no such
    node, and `UnreachableError` when the head is unreachable."""
    cluster = ClusterHandle.of(ctx, spec)
    head = await cluster.head()
    report = await read_status(cluster, head)
    if report is None:
        raise NotFoundError(
            f"cluster {spec.cluster_name} has no controller",
            why="it was brought up without one, or the controller has not started yet",
            fix="shoal up CLUSTER",
        )
    if pending:
        return Explanation(waiting=report.state.waiting, alive=report.alive, now=report.read_at)
    if node is None:
        decisions = report.state.decisions
        return Explanation(decisions, alive=report.alive, now=report.read_at)
    nodes = _histories(report, node)
    if not nodes:  # the report only has recent nodes
        journaled = await read_nodes(cluster, head, node)
        nodes = tuple(_history(vars(entry)) for entry in reversed(journaled))
    if not nodes:
        names = ", ".join(n["name"] for n in report.state.nodes)
        raise NotFoundError(f"unknown node: {node}", why=f"the nodes are {names}")
    decisions = tuple(d for d in report.state.decisions if d.subject == node)
    return Explanation(decisions, nodes, alive=report.alive, now=report.read_at)


def _histories(report: StatusReport, node: str) -> tuple[NodeHistory, ...]:
    entries = [*report.state.gone, *report.state.nodes]
    matching = [entry for entry in entries if node in (entry["name"], entry["id"])]
    return tuple(_history(entry) for entry in reversed(matching))


def _history(node: Mapping[str, Any]) -> NodeHistory:
    return NodeHistory(
        name=node["name"],
        node_type=node["node_type"],
        phase=Phase(node["phase"]).value,
        since=node["since"],
        why=node["why"],
        ended=node["ended"],
        detail=node["detail"],
    )
