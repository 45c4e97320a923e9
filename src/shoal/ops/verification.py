"""Checks, at the end of a command, that every node is in Ray by Ray's own account."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Sequence

from shoal.cluster.handle import ClusterHandle
from shoal.controller import status_reader
from shoal.controller.status_reader import StatusReport
from shoal.core.errors import IncompleteError, NotFoundError, ShoalError
from shoal.core.events import Stage, Warned
from shoal.core.node_phase import PENDING_PHASES, Phase
from shoal.core.polling import PollUntilDeadline
from shoal.ops.context import Context
from shoal.providers.model import Instance, State
from shoal.ray_runtime.nodes import EnvironmentChangedError

_log = logging.getLogger(__name__)

# The controller reads Ray's GCS several times a second; a node that has just joined may be missing
# in its first report.
_READS = 40
_PAUSE_SECONDS = 0.1
# The controller works on a node in these phases. A node that it has not seen in Ray yet is booting.
_BOOTSTRAP_PHASES = PENDING_PHASES - {Phase.REQUESTED, Phase.BOOTING}
# Nodes that the controller is bringing up get this long.
_PENDING_SECONDS = 300.0
# Workers that only the controller launches get this long.
_MIN_WORKERS_SECONDS = 1200.0
_POLL_SECONDS = 0.5


async def verify_environment(cluster: ClusterHandle, head: Instance) -> None:
    """Raise `IncompleteError` if the head's Ray runs in an environment that was removed or replaced
    since it started. Its processes run on and look healthy."""
    if not cluster.ray_start(head, head).find_python_of_running:
        return
    try:
        await cluster.list_nodes(head)
    except EnvironmentChangedError as error:
        raise IncompleteError(error.what, why=error.why, fix=error.fix, node=head.name) from None
    except ShoalError as error:
        _log.info("could not check Ray's environment: %s", error)


async def verify_nodes(
    ctx: Context,
    cluster: ClusterHandle,
    head: Instance,
    nodes: Sequence[Instance],
    report: StatusReport | None,
) -> None:
    """Raise `IncompleteError` unless all of these nodes are in Ray. `report` is the controller's
    first one, which says what the GCS lists; without it, or if a node is missing there, Ray itself
    is asked."""
    nodes = [node for node in nodes if node.state in (State.RUNNING, State.PENDING)]
    if report is not None:
        report = await _wait_for_pending(ctx, cluster, head, nodes, report)
    for _ in range(_READS if report is not None else 0):
        if report is not None and not _missing(nodes, _in_ray(report)):
            _warn_of_error(ctx, head, report)
            return
        await ctx.clock.sleep(_PAUSE_SECONDS)
        report = await status_reader.read_status(cluster, head)
    try:
        missing = _missing(nodes, await cluster.list_nodes(head))
    except NotFoundError as error:
        # What the start commands started is not a Ray, and there is nothing to ask.
        _log.info("could not check that the nodes are in Ray: %s", error)
        return
    except ShoalError as error:
        raise IncompleteError(
            "Ray does not list its nodes",
            why=error.why or error.what,
            fix=error.fix,
            node=head.name,
            output=error.output,
        ) from None
    if missing:
        names = ", ".join(node.name for node in missing)
        raise IncompleteError(
            f"{len(missing)} of {len(nodes)} nodes are not in Ray: {names}",
            why="they were started, and Ray's GCS on the head does not list them",
            fix="see more: shoal status CLUSTER\nrestart them: shoal up CLUSTER",
        )


def _warn_of_error(ctx: Context, head: Instance, report: StatusReport) -> None:
    """The nodes run; but a controller that, for example, cannot reach the cloud's API neither
    launches nor terminates any."""
    if error := report.state.error:
        fix = "see whether it goes on: shoal status CLUSTER"
        ctx.emit(Warned("the controller cannot manage the cluster", error, fix, head.name))


async def wait_for_min_workers(ctx: Context, cluster: ClusterHandle, head: Instance) -> int:
    """Wait until the controller has brought up the minimum of workers, where only it launches
    them. Returns how many workers are up. Raises `IncompleteError` if they do not come up."""
    wanted = {name: t.min_workers for name, t in cluster.spec.node_types.items() if t.min_workers}
    if not cluster.capabilities.controller_launches_workers or not wanted:
        return 0
    total = sum(wanted.values())
    ready: Counter[str] = Counter()
    why, announced = "", False
    async for _ in PollUntilDeadline(ctx.clock, _MIN_WORKERS_SECONDS, _POLL_SECONDS):
        report = await status_reader.read_status(cluster, head)
        if report is None or not report.alive:
            continue
        nodes = [node for node in report.state.nodes if node["role"] == "worker"]
        ready = Counter(node["node_type"] for node in nodes if node["phase"] == Phase.READY.value)
        if all(ready[name] >= count for name, count in wanted.items()):
            return ready.total()
        if not announced:
            ctx.emit(Stage(f"waiting for the controller, which launches {total} workers"))
            announced = True
        ended = [d for d in report.state.decisions if d.action in ("failed", "block")]
        why = f"{ended[-1].subject}: {ended[-1].why}" if ended else why
        if any(d.action == "block" for d in ended):
            break
    up = sum(min(ready[name], count) for name, count in wanted.items())
    raise IncompleteError(
        f"{up} of {total} workers are up",
        why=why or f"the controller has not brought them up within {_MIN_WORKERS_SECONDS:.0f} s",
        fix="see what it does: shoal status CLUSTER\nonce that is fixed: shoal up CLUSTER",
        node=head.name,
    )


async def _wait_for_pending(
    ctx: Context,
    cluster: ClusterHandle,
    head: Instance,
    nodes: Sequence[Instance],
    report: StatusReport | None,
) -> StatusReport | None:
    """The report after the controller has finished with those of the nodes that it is bringing up
    at the moment, e.g. because their Ray was lost."""
    announced = ""
    async for _ in PollUntilDeadline(ctx.clock, _PENDING_SECONDS, _PAUSE_SECONDS):
        if report is None or not report.alive:
            break
        pending = {n["id"] for n in report.state.nodes if Phase(n["phase"]) in _BOOTSTRAP_PHASES}
        names = ", ".join(node.name for node in nodes if node.id in pending)
        if not names:
            break
        if names != announced:
            ctx.emit(Stage(f"waiting for the controller, which is bringing up {names}"))
            announced = names
        report = await status_reader.read_status(cluster, head)
    return report


def _in_ray(report: StatusReport) -> set[str]:
    """The ids of nodes that are in Ray, or that the controller has removed meanwhile."""
    in_ray = (Phase.READY.value, Phase.DRAINING.value)
    present = [node for node in report.state.nodes if node["phase"] in in_ray]
    return {str(node["id"]) for node in (*present, *report.state.gone)}


def _missing(nodes: Sequence[Instance], present: Collection[str]) -> list[Instance]:
    return [node for node in nodes if node.id not in present]
