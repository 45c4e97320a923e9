"""Drains a node: Ray starts no new work on it, and the controller terminates it once its work is
done, and replaces it if the cluster needs it."""

from __future__ import annotations

from shoal.cluster.handle import ClusterHandle
from shoal.controller import status_reader
from shoal.controller.paths import DIRECTORY, DRAIN_REQUESTS
from shoal.core.errors import ConfigError, NotFoundError, ShoalError, TransientError
from shoal.core.events import PlanStep, Stage
from shoal.core.node_phase import Phase
from shoal.core.polling import PollUntilDeadline
from shoal.ops.context import Context, Severity
from shoal.ops.running_work import describe_running_work
from shoal.providers.model import Instance
from shoal.remote.runner import quote
from shoal.spec.cluster_spec import ClusterSpec

_REQUEST_SECONDS = 20.0
# The controller's loop takes the request within a few seconds.
_TAKEN_SECONDS = 30.0
_POLL_SECONDS = 0.5


async def drain(ctx: Context, spec: ClusterSpec, node: str) -> bool:
    """Have the controller drain the worker with this name or address, and return when it has begun;
    False when the user declined."""
    cluster = ClusterHandle.of(ctx, spec)
    head = await cluster.head()
    instance = await cluster.instance_named(node)
    if instance.role == "head":
        raise ConfigError(
            "the head cannot be drained",
            why="the cluster ends with it",
            fix="terminate the cluster: shoal down CLUSTER",
        )
    report = await status_reader.read_status(cluster, head)
    if report is None or not report.alive:
        raise NotFoundError(
            f"the controller of {spec.cluster_name} does not run",
            why="it is the controller that drains nodes",
            fix="shoal up CLUSTER",
        )
    why = "no new work starts on it; it is terminated when its work is done"
    ctx.emit(PlanStep("drain", instance.name, why))
    question = await describe_running_work(ctx, cluster, [instance], "continues until it ends")
    if not ctx.confirm(f"{question}Drain {instance.name}?", Severity.DESTRUCTIVE):
        return False
    directory = f"{DIRECTORY}/{DRAIN_REQUESTS}"
    command = f"mkdir -p {directory} && {quote(['touch', f'{directory}/{instance.id}'])}"
    try:
        done = await cluster.node_runner(head).run(
            command, timeout=_REQUEST_SECONDS, skip_profile=True
        )
    except TimeoutError:
        raise ShoalError("the head does not answer", node=head.name) from None
    if not done.ok:
        raise ShoalError("could not request the drain", output=done.tail, node=head.name)
    await _until_taken(ctx, cluster, head, instance)
    ctx.emit(Stage(f"{instance.name} is draining"))
    return True


async def _until_taken(
    ctx: Context, cluster: ClusterHandle, head: Instance, instance: Instance
) -> None:
    leaving = (Phase.DRAINING, Phase.TERMINATING)
    async for _ in PollUntilDeadline(ctx.clock, _TAKEN_SECONDS, _POLL_SECONDS):
        report = await status_reader.read_status(cluster, head)
        nodes = report.state.nodes if report is not None else ()
        phases = {n["id"]: Phase(n["phase"]) for n in nodes}
        if phases.get(instance.id, Phase.TERMINATING) in leaving:
            return
    raise TransientError(
        f"{instance.name} is not draining",
        why=f"the controller has not begun within {_TAKEN_SECONDS:.0f} s: only a ready node drains",
        fix="see what it does: shoal why CLUSTER",
        node=instance.name,
    )
