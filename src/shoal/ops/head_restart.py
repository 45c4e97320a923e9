"""The controller restarts the head's Ray when it dies. Commands that meet such a restart wait for
it, or explain what it ended."""

from __future__ import annotations

import logging
from collections.abc import Collection

from shoal.cluster.handle import ClusterHandle
from shoal.cluster.observed_cluster import ObservedCluster
from shoal.controller import status_reader
from shoal.controller.status_reader import StatusReport
from shoal.core.errors import ShoalError
from shoal.core.events import Stage, Warned
from shoal.core.node_phase import PENDING_PHASES, Phase
from shoal.core.polling import PollUntilDeadline
from shoal.ops.context import Context
from shoal.providers.model import Instance, State, head_of

_log = logging.getLogger(__name__)

# A head's Ray starts within seconds; on a busy machine it may take a minute.
_RESTART_SECONDS = 120.0
_POLL_SECONDS = 0.5


async def wait_for_head_restart(
    ctx: Context, cluster: ClusterHandle, observed: ObservedCluster
) -> bool:
    """Wait while the controller restarts the head's Ray, and say so. Returns whether it did: then
    the cluster must be observed again. After a deadline, the caller has to restart it."""
    head = head_of(observed.instances)
    if head is None or head.state is not State.RUNNING:
        return False
    probe = observed.probes.get(head.id)
    if probe is None or probe.ray_runs or not await _is_restarting(cluster, head):
        return False
    ctx.emit(Stage("waiting for the controller, which is restarting the head's Ray"))
    async for _ in PollUntilDeadline(ctx.clock, _RESTART_SECONDS, _POLL_SECONDS):
        if not await _is_restarting(cluster, head):
            return True
    ctx.emit(Stage(f"the controller has not restarted it within {_RESTART_SECONDS:.0f} s"))
    return True


async def was_head_lost(
    cluster: ClusterHandle, observed: ObservedCluster, updated: Collection[str]
) -> bool:
    """Whether the head's Ray ran when it was observed, is not among the `updated` nodes, and does
    not run any more: no worker could join it."""
    head = head_of(observed.instances)
    probe = observed.probes.get(head.id) if head is not None else None
    if head is None or probe is None or not probe.ray_runs or head.id in updated:
        return False
    return not (await cluster.probe(head)).ray_runs


async def _is_restarting(cluster: ClusterHandle, head: Instance) -> bool:
    report = await _read_status(cluster, head)
    return report is not None and report.alive and _head_phase(report, head) in PENDING_PHASES


def _head_phase(report: StatusReport, head: Instance) -> Phase | None:
    phases = [Phase(n["phase"]) for n in report.state.nodes if n["id"] == head.id]
    return phases[0] if phases else None


async def warn_if_cluster_was_lost(
    ctx: Context, cluster: ClusterHandle, head: Instance, seconds: float
) -> None:
    """Say so if the head, or its Ray, was lost within the last `seconds`: then a command that ran
    on it has failed because of that."""
    try:
        heads = await cluster.instances("head")
        is_gone = head.id not in {i.id for i in heads if i.state is State.RUNNING}
        warning = _terminated(cluster) if is_gone else await _lost_ray(cluster, head, seconds)
    except (ShoalError, TimeoutError) as error:
        _log.info("could not find out whether the cluster was lost: %s", error)
        return
    if warning is not None:
        ctx.emit(warning)


async def _lost_ray(cluster: ClusterHandle, head: Instance, seconds: float) -> Warned | None:
    what = f"the Ray of {cluster.name} died while the command ran"
    lost = "its tasks, actors and objects are lost"
    again = "run the command again"
    report = await _read_status(cluster, head)
    is_alive = report is not None and report.alive
    if report is not None:
        # Both times are the head's.
        since = report.state.at + report.age_s - seconds
        restarts = [d for d in report.state.decisions if d.action == "restart" and d.at >= since]
        if any(d.subject == "head" for d in restarts):
            why = f"{lost}; the controller has restarted Ray on all nodes"
            if _head_phase(report, head) is not Phase.READY:
                why = f"{lost}; the controller is restarting Ray on all nodes"
            return Warned(what, why, f"wait until it is ready: shoal status CLUSTER\n{again}")
    if (await cluster.probe(head)).ray_runs:
        return None
    if is_alive:
        why = f"{lost}; the controller will restart Ray on all nodes"
        return Warned(what, why, f"wait until it is ready: shoal status CLUSTER\n{again}")
    return Warned(what, lost, f"restart it: shoal up CLUSTER\n{again}")


def _terminated(cluster: ClusterHandle) -> Warned:
    return Warned(
        f"cluster {cluster.name} was terminated while the command ran",
        why="its head is gone: shoal down, autostop, or its provider terminated it",
        fix="bring it up again: shoal up CLUSTER\nrun the command again",
    )


async def _read_status(cluster: ClusterHandle, head: Instance) -> StatusReport | None:
    try:
        return await status_reader.read_status(cluster, head)
    except ShoalError as error:
        _log.info("could not read the controller's status: %s", error)
        return None
