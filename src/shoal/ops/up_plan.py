"""Plans `up`: pure functions from a spec and an observed cluster to an `UpPlan`.

Nothing here acts: the user sees the plan first, and `ops.up` executes it.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from shoal.bootstrap.node_probe import NodeProbe
from shoal.cluster.observed_cluster import ObservedCluster
from shoal.core.events import PlanStep
from shoal.providers.model import Instance, LaunchRequest, State
from shoal.spec.cluster_spec import ClusterSpec
from shoal.spec.hashes import is_outdated

if TYPE_CHECKING:
    from shoal.bootstrap.node_plan import Mode

RestartPolicy = Literal["as needed", "never", "only"]

# States in which an instance does not count as part of the cluster.
ABSENT_STATES = (State.UNREACHABLE, State.TERMINATING, State.TERMINATED)


@dataclass(frozen=True)
class NodeUpdate:
    """An existing instance to bootstrap again, and how much of it (see `NodePlan.mode`)."""

    instance: Instance
    mode: Mode
    stops_ray: bool


@dataclass(frozen=True)
class UpPlan:
    """What `up` will do: launches, updates of existing nodes, and terminations, with `steps` as
    the description for the user. Of the instances in `terminate`, `replaced` get a successor.
    `drain` are surplus workers that the controller terminates once they are idle. `spare` are
    stopped workers that stay stopped; `outdated` are kept although their launch settings changed
    in the file."""

    launches: tuple[LaunchRequest, ...] = ()
    updates: tuple[NodeUpdate, ...] = ()
    terminate: tuple[Instance, ...] = ()
    replaced: tuple[Instance, ...] = ()
    drain: tuple[Instance, ...] = ()
    spare: tuple[Instance, ...] = ()
    outdated: tuple[Instance, ...] = ()
    steps: tuple[PlanStep, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.launches or self.updates or self.terminate)

    def without_terminations(self) -> UpPlan:
        """The plan without its terminations."""
        steps = tuple(step for step in self.steps if step.action != "terminate")
        return replace(self, terminate=(), replaced=(), steps=steps)

    @property
    def is_disruptive(self) -> bool:
        """Whether it interrupts something that is running. Nothing runs on the workers of a head
        whose Ray has died."""
        head_is_gone = any(
            u.instance.role == "head" and u.mode != "update" and not u.stops_ray
            for u in self.updates
        )
        stops_ray = any(update.stops_ray for update in self.updates)
        return bool(self.terminate) or (stops_ray and not head_is_gone)


def plan_up(
    spec: ClusterSpec, observed: ObservedCluster, restart: RestartPolicy = "as needed"
) -> UpPlan:
    """The plan that brings the observed cluster to what the spec says. An unreachable instance
    counts as absent, so that it is replaced."""
    classified = _classify(spec, observed.instances, restart)
    head, keep = classified.head, classified.keep
    action: Literal["use", "create"] = "use" if observed.uses_existing_hosts else "create"
    usable = len(observed.free_hosts) if observed.uses_existing_hosts else None
    launches, steps = _launches(spec, head, keep, action, usable)
    if observed.controller_launches_workers:
        launches = [launch for launch in launches if launch.role == "head"]
        steps = _left_to_controller(steps) if head is None else []
    steps += [PlanStep("terminate", i.name, _why_replaced(spec, i)) for i in classified.replaced]

    updates: list[NodeUpdate] = []
    head_stays = False
    if head is not None:
        mode, reason = _update_mode(head, observed, restart)
        head_stays = mode in (None, "update")
        _add_update(updates, steps, head, observed, mode, reason)
    for worker in keep:
        mode, reason = _update_mode(worker, observed, restart)
        if not head_stays and mode in (None, "update"):
            mode = "restart" if mode is None else "full"
            reason = "its head is new" if head is None else "its head restarts"
        _add_update(updates, steps, worker, observed, mode, reason)
    # A controller waits for the work on a surplus worker, unless the head's restart ends it anyway.
    can_drain = head_stays and spec.shoal.controller
    drain = [i for i in classified.surplus if can_drain and i.role == "worker"]
    surplus = [i for i in classified.surplus if i not in drain]
    steps += [PlanStep("terminate", i.name, _why_surplus(spec, i)) for i in surplus]
    when = "the controller terminates it once it is idle"
    steps += [PlanStep("drain", i.name, f"{_why_surplus(spec, i)}; {when}") for i in drain]
    return UpPlan(
        launches=tuple(launches),
        updates=tuple(updates),
        terminate=(*classified.replaced, *surplus),
        replaced=tuple(classified.replaced),
        drain=tuple(drain),
        spare=tuple(classified.spare),
        outdated=tuple(
            i
            for i in (head, *keep)
            if i is not None and is_outdated(spec, i.node_type, i.launch_hash)
        ),
        steps=tuple(steps),
    )


def needs_launches(
    spec: ClusterSpec,
    instances: Sequence[Instance],
    restart: RestartPolicy = "as needed",
    *,
    controller_launches_workers: bool = False,
) -> bool:
    """Whether instances are missing, judged by the provider's list alone."""
    classified = _classify(spec, instances, restart)
    if controller_launches_workers:
        return classified.head is None
    return bool(_launches(spec, classified.head, classified.keep)[0])


@dataclass
class _Classified:
    """The existing instances by what happens to them: the head, workers to keep, instances to
    replace, surplus instances, and spare workers that stay stopped."""

    head: Instance | None
    keep: list[Instance]
    replaced: list[Instance]
    surplus: list[Instance]
    spare: list[Instance]


def _classify(
    spec: ClusterSpec, instances: Sequence[Instance], restart: RestartPolicy
) -> _Classified:
    present = [i for i in instances if i.state not in ABSENT_STATES]
    # With --no-restart or --restart-only, no instance is replaced.
    replaced = [
        i
        for i in present
        if restart == "as needed" and is_outdated(spec, i.node_type, i.launch_hash)
    ]
    present = [i for i in present if i not in replaced]
    spare = spare_workers(spec, present)
    keep, surplus = _split_by_limits(spec, [i for i in present if i not in spare])
    # Two concurrent `up` runs may have launched two heads: the older one stays.
    heads = sorted((i for i in present if i.role == "head"), key=lambda i: i.created_at or 0.0)
    head = heads[0] if heads else None
    surplus += heads[1:]
    if head is not None and head.node_type != spec.head_node_type:
        replaced.append(head)
        head = None
    return _Classified(head, keep, replaced, surplus, spare)


def _update_mode(
    instance: Instance, observed: ObservedCluster, restart: RestartPolicy
) -> tuple[Mode | None, str]:
    """How much of the bootstrap a node needs, regardless of other nodes, and why."""
    probe = observed.probes.get(instance.id)
    desired = observed.desired_states[instance.id]
    if restart == "only":
        return "restart", "requested by --restart-only"
    if instance.state in (State.STOPPED, State.STOPPING):
        return "full", "it is stopped"
    if probe is None and instance.state is State.RUNNING:
        # It is probed again during the update, and a running Ray is left alone.
        return "update", "could not read its state"
    if probe is None or not probe.ray_runs:
        return "full", "Ray is not running on it"
    if probe.applied_state == desired:
        return None, ""
    if probe.applied_state.container != desired.container and restart != "never":
        return "full", "its container changed"
    if probe.applied_state.volumes != desired.volumes and restart != "never":
        return "full", "its volumes changed"
    changed = "its files" if probe.applied_state.files != desired.files else "its setup"
    if (probe.applied_state.files, probe.applied_state.setup) == (desired.files, desired.setup):
        was_restarted = probe.applied_state.start != ""
        why = "its start commands changed" if was_restarted else "its Ray was not restarted yet"
        return (None, "") if restart == "never" else ("restart", why)
    return ("update" if restart == "never" else "full"), f"{changed} changed"


def _add_update(
    updates: list[NodeUpdate],
    steps: list[PlanStep],
    instance: Instance,
    observed: ObservedCluster,
    mode: Mode | None,
    reason: str,
) -> None:
    if mode is None:
        return
    runs = observed.probes.get(instance.id, NodeProbe()).ray_runs
    updates.append(NodeUpdate(instance, mode, stops_ray=runs and mode != "update"))
    action: Literal["update", "restart", "start"] = "restart" if runs else "start"
    steps.append(PlanStep("update" if mode == "update" else action, instance.name, reason))


def spare_workers(spec: ClusterSpec, instances: Sequence[Instance]) -> list[Instance]:
    """Stopped workers beyond the number to start with: they stay stopped until the controller
    needs them."""
    workers = [i for i in instances if i.role == "worker" and i.node_type in spec.node_types]
    stopped = [i for i in workers if i.state in (State.STOPPED, State.STOPPING)]
    remaining = Counter(_initial_workers(spec))
    remaining.subtract(i.node_type for i in workers if i not in stopped)
    spare = []
    for instance in sorted(stopped, key=lambda i: i.created_at or 0.0):
        remaining[instance.node_type] -= 1
        if remaining[instance.node_type] < 0:
            spare.append(instance)
    return spare


def _split_by_limits(
    spec: ClusterSpec, instances: Sequence[Instance]
) -> tuple[list[Instance], list[Instance]]:
    """Workers to keep, and surplus workers above max_workers. The oldest are kept."""
    keep: list[Instance] = []
    surplus: list[Instance] = []
    remaining = Counter({name: t.max_workers for name, t in spec.node_types.items()})
    remaining_total = spec.scaling.max_workers
    for instance in sorted(instances, key=lambda i: i.created_at or 0.0):
        if instance.role == "head":
            continue
        if remaining[instance.node_type] > 0 and remaining_total > 0:
            remaining[instance.node_type] -= 1
            remaining_total -= 1
            keep.append(instance)
        else:
            surplus.append(instance)
    return keep, surplus


def _launches(
    spec: ClusterSpec,
    head: Instance | None,
    keep: Sequence[Instance],
    action: Literal["use", "create"] = "create",
    usable: int | None = None,
) -> tuple[list[LaunchRequest], list[PlanStep]]:
    """What to launch, and the steps that show it. Of existing hosts only `usable` workers are
    shown: the others would fail, and the user is notified why."""
    launches: list[LaunchRequest] = []
    steps: list[PlanStep] = []
    if head is None:
        launches.append(LaunchRequest(spec.head_node_type, "head", 1, secrets.token_hex(8)))
        steps.append(PlanStep(action, f"1 x {spec.head_node_type}", "the head"))
    existing = Counter(i.node_type for i in keep)
    for name, target in _initial_workers(spec).items():
        missing = target - existing[name]
        if missing > 0:
            launches.append(LaunchRequest(name, "worker", missing, secrets.token_hex(8)))
            reason = f"min_workers is {target}"
            if existing[name]:
                reason += f", {existing[name]} exist"
            shown = missing if usable is None else min(missing, usable)
            usable = None if usable is None else usable - shown
            if shown:
                steps.append(PlanStep(action, f"{shown} x {name}", reason))
    return launches, steps


def _left_to_controller(steps: Sequence[PlanStep]) -> list[PlanStep]:
    """The steps, where those for workers say who executes them."""
    head, *workers = steps
    return [head, *(replace(s, reason=f"{s.reason}; the controller does it") for s in workers)]


def _initial_workers(spec: ClusterSpec) -> dict[str, int]:
    """How many workers of each type to start with. The legacy `initial_workers` may raise the
    total above the minimum."""
    counts = {name: t.min_workers for name, t in spec.node_types.items()}
    short = (spec.scaling.initial_workers or 0) - sum(counts.values())
    for name, node_type in spec.node_types.items():
        if short <= 0:
            break
        extra = min(short, node_type.max_workers - counts[name])
        counts[name] += extra
        short -= extra
    return counts


def _why_replaced(spec: ClusterSpec, instance: Instance) -> str:
    why = "its node_config, ssh_user or volumes changed"
    if instance.role == "worker":
        return why
    if instance.node_type != spec.head_node_type:
        why = f"the head's node type is now {spec.head_node_type}"
    return f"{why}; the data on its disks is lost"


def _why_surplus(spec: ClusterSpec, instance: Instance) -> str:
    if instance.role == "head":
        return "another, older head exists"
    node_type = spec.node_types.get(instance.node_type)
    if node_type is None:
        return f"node type {instance.node_type} is no longer in the file"
    return f"max_workers is {min(node_type.max_workers, spec.scaling.max_workers)}"
