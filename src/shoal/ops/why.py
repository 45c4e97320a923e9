"""Why the cluster is as it is: the controller's last decisions, one node's story, or what becomes
of the work that waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal.cluster.handle import ClusterHandle
from shoal.controller.client import Report, read_nodes, read_report
from shoal.controller.state import Decision
from shoal.controller.status_file import Waiting
from shoal.core.errors import NotFoundError
from shoal.core.node_phase import Phase
from shoal.ops.context import Context
from shoal.spec.cluster_spec import ClusterSpec


@dataclass(frozen=True)
class NodeHistory:
    """One node: why it exists, what it is now, and why it ended if it did."""

    name: str
    node_type: str
    phase: str
    since: float
    why: str
    ended: str
    detail: str


@dataclass(frozen=True)
class Explanation:
    """What was asked: decisions, the nodes of the nodes of a name (the last one first), or the
    rows that wait."""

    decisions: tuple[Decision, ...] = ()
    nodes: tuple[NodeHistory, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    alive: bool = True


async def why(
    ctx: Context, spec: ClusterSpec, node: str | None = None, *, pending: bool = False
) -> Explanation:
    """The account that the controller of a cluster gives. Raises `NotFoundError` when it has
    none, or no such node, and `UnreachableError` when there is no way to ask."""
    cluster = ClusterHandle.of(ctx, spec)
    head = await cluster.head()
    report = await read_report(cluster, head)
    if report is None:
        raise NotFoundError(
            f"cluster {spec.cluster_name} has no controller to ask",
            why="it was brought up without one, or has not begun yet",
            fix="shoal up starts it",
        )
    if pending:
        return Explanation(waiting=report.state.waiting, alive=report.alive)
    if node is None:
        return Explanation(decisions=report.state.decisions, alive=report.alive)
    nodes = _histories(report, node)
    if not nodes:  # the report has the last ones only
        nodes = tuple(_history(vars(found)) for found in await read_nodes(cluster, head, node))[
            ::-1
        ]
    if not nodes:
        names = ", ".join(n["name"] for n in report.state.nodes)
        raise NotFoundError(f"no node {node} is remembered", why=f"there are {names}")
    decisions = tuple(d for d in report.state.decisions if d.subject == node)
    return Explanation(decisions, nodes, alive=report.alive)


def _histories(report: Report, node: str) -> tuple[NodeHistory, ...]:
    found = [n for n in (*report.state.gone, *report.state.nodes) if node in (n["name"], n["id"])]
    return tuple(_history(n) for n in reversed(found))


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
