"""One cluster at one time, as the page and the terminal show it, from what its provider and its
controller report. Pure: it sends no requests."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from shoal.controller.status_file import WaitingDemand
from shoal.controller.status_reader import StatusReport
from shoal.core.errors import ShoalError, fix_for_cluster
from shoal.core.node_phase import Phase
from shoal.costs.ledger import CostRow
from shoal.providers.model import Instance, State
from shoal.spec.cluster_spec import ClusterSpec

# "unknown": it has not been asked yet, or does not answer; "down": it is not up.
ClusterState = Literal["unknown", "up", "starting", "stopped", "terminating", "down"]

_OFF = (State.TERMINATED,)
_PHASES = {
    State.PENDING: Phase.BOOTING,
    State.STOPPING: Phase.TERMINATING,
    State.STOPPED: Phase.STOPPED,
    State.TERMINATING: Phase.TERMINATING,
    State.TERMINATED: Phase.GONE,
    State.UNREACHABLE: Phase.FAILED,
}


@dataclass(frozen=True)
class Problem:
    """What is wrong with a cluster or a node, why, and how to fix it."""

    what: str
    why: str = ""
    fix: str = ""
    node: str = ""


@dataclass(frozen=True)
class NodeSnapshot:
    """One node. `usage` is (used, total) by resource, empty until it is in Ray."""

    id: str
    name: str
    node_type: str
    role: str
    phase: str
    since: float | None = None
    created: float | None = None
    address: str = ""
    market: str = ""
    zone: str = ""
    price_per_hour: float | None = None
    why: str = ""
    ended: str = ""
    detail: str = ""
    usage: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class ClusterSnapshot:
    """`at` is when this machine heard of the cluster last, and `now` the time by the head's clock,
    as all other times are. Not `answers` if that is too long ago: everything here is as it was
    then. `cost` is what it has cost so far."""

    cluster: str
    provider: str
    state: ClusterState
    at: float = 0.0
    now: float = 0.0
    answers: bool = True
    nodes: tuple[NodeSnapshot, ...] = ()
    price_per_hour: float = 0.0
    priced: bool = True
    cost: float | None = None
    cost_rows: tuple[CostRow, ...] = ()
    autostop_at: float | None = None
    waiting: tuple[WaitingDemand, ...] = ()
    usage: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    limits: Mapping[str, Any] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()

    @property
    def phases(self) -> dict[str, int]:
        """How many nodes are in each phase."""
        return dict(Counter(node.phase for node in self.nodes))


def problem_of(error: ShoalError, cluster: str) -> Problem:
    """An error as a problem of this cluster."""
    return Problem(error.what, error.why, fix_for_cluster(error.fix, cluster), error.node)


def from_instances(
    spec: ClusterSpec,
    instances: Sequence[Instance],
    *,
    at: float,
    costs_money: bool,
    up_runs: bool = False,
    shutdown: str = "",
) -> ClusterSnapshot:
    """A cluster of which only its provider's list is known: it has no controller, or that does not
    run. `up_runs` while a `shoal up` on this machine works on it."""
    nodes = tuple(_from_instance(i, up_runs=up_runs) for i in instances if i.state not in _OFF)
    billed = [i for i in instances if i.state in (State.PENDING, State.RUNNING)]
    problems = [
        Problem("a node does not answer", node=i.name)
        for i in instances
        if i.state is State.UNREACHABLE
    ]
    if shutdown and not nodes:
        problems.append(Problem("the cluster has shut itself down", shutdown))
    return ClusterSnapshot(
        cluster=spec.cluster_name,
        provider=spec.provider.type,
        state=_state(instances, up_runs=up_runs),
        at=at,
        now=at,
        nodes=nodes,
        price_per_hour=math.fsum(i.price_per_hour or 0.0 for i in billed),
        priced=not costs_money or all(i.price_per_hour is not None for i in billed),
        problems=tuple(problems),
    )


def _state(instances: Sequence[Instance], *, up_runs: bool) -> ClusterState:
    states = {i.state for i in instances if i.state not in _OFF}
    if not states:
        return "starting" if up_runs else "down"
    if states <= {State.STOPPED, State.STOPPING}:
        return "stopped"
    if states <= {State.TERMINATING, State.STOPPING}:
        return "terminating"
    return "starting" if up_runs else "up"


def _from_instance(instance: Instance, *, up_runs: bool) -> NodeSnapshot:
    running = Phase.PREPARING if up_runs else Phase.UNKNOWN
    return NodeSnapshot(
        id=instance.id,
        name=instance.name,
        node_type=instance.node_type,
        role=instance.role,
        phase=str(_PHASES.get(instance.state, running)),
        created=instance.created_at,
        address=instance.address,
        market=instance.market,
        zone=instance.zone,
        price_per_hour=instance.price_per_hour,
    )


def from_report(
    spec: ClusterSpec,
    report: StatusReport,
    *,
    at: float,
    costs_money: bool,
    up_runs: bool = False,
    error: str = "",
) -> ClusterSnapshot:
    """A cluster as its controller reports it. `error` is why the last report could not be read."""
    state = report.state
    is_stopped = not (report.is_configured or report.alive or up_runs)
    nodes = tuple(
        _from_report(node, state.node_usage.get(node["id"], {}))
        for node in sorted(state.nodes, key=lambda n: (n["role"] != "head", n["created"]))
    )
    billed = [n for n in nodes if n.phase not in (Phase.STOPPED, Phase.GONE)]
    if is_stopped:  # `shoal stop` ends Ray and the controller; these machines keep running
        nodes = tuple(replace(n, phase=str(Phase.STOPPED), usage={}) for n in nodes)
    is_expected = is_stopped or up_runs
    problems = [] if is_expected else _controller_problems(spec.cluster_name, report)
    if error:
        problems.append(Problem("the controller's report cannot be read", error))
    problems += [
        Problem(f"{n.name} failed", n.detail or n.ended, node=n.name)
        for n in nodes
        if n.phase == Phase.FAILED
    ]
    is_starting = up_runs or not any(n.phase == Phase.READY for n in nodes)
    return ClusterSnapshot(
        cluster=spec.cluster_name,
        provider=spec.provider.type,
        state="stopped" if is_stopped else "starting" if is_starting else "up",
        at=at,
        now=report.read_at,
        nodes=nodes,
        price_per_hour=math.fsum(n.price_per_hour or 0.0 for n in billed),
        priced=not costs_money or all(n.price_per_hour is not None for n in billed),
        autostop_at=state.autostop_at,
        waiting=() if is_stopped else state.waiting,
        usage={} if is_stopped else state.usage,
        limits=state.limits,
        problems=tuple(problems),
    )


def _from_report(node: Mapping[str, Any], usage: Mapping[str, tuple[float, float]]) -> NodeSnapshot:
    return NodeSnapshot(
        id=node["id"],
        name=node["name"],
        node_type=node["node_type"],
        role=node["role"],
        phase=str(Phase(node["phase"])),
        since=node["since"],
        created=node["created"],
        address=node.get("address", ""),
        market=node.get("market", ""),
        zone=node.get("zone", ""),
        price_per_hour=node.get("price_per_hour"),
        why=node.get("why", ""),
        ended=node.get("ended", ""),
        detail=node.get("detail", ""),
        usage=usage,
    )


def _controller_problems(cluster: str, report: StatusReport) -> list[Problem]:
    restart = f"restart it: shoal up {cluster}"
    if report.restarts_too_often:
        what = f"the controller restarted {report.restarts} times within the last minute"
        return [Problem(what, report.log[-1] if report.log else "", restart)]
    if not report.alive:
        what = f"no heartbeat from the controller for {report.age_s:.0f} s"
        return [Problem(what, "the cluster is not scaled or repaired", restart)]
    problems = [Problem("controller error", report.state.error)] if report.state.error else []
    unmet = [row for row in report.state.waiting if row.fix]
    problems += [
        Problem(f"{row.count} x {row.subject} cannot run", row.outlook, row.fix) for row in unmet
    ]
    return problems
