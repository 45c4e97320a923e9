"""What `up` would do, decided from data alone: what is asked for, what is there, what lives.

Nothing here acts. `ops.up` carries a plan out, and a person sees it first.
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
from shoal.spec.hashes import launch_hash

if TYPE_CHECKING:
    from shoal.bootstrap.node_plan import Mode

RestartPolicy = Literal["as needed", "never", "only"]


# States in which a machine does not count.
NOT_THERE = (State.UNREACHABLE, State.TERMINATING, State.TERMINATED)


@dataclass(frozen=True)
class NodeUpdate:
    """A machine that is there, and how much is to be done on it again. `mode` is that of
    `bootstrap.node_plan.NodePlan`."""

    instance: Instance
    mode: Mode
    stops_ray: bool


@dataclass(frozen=True)
class UpPlan:
    """Machines to create, machines to work on again, machines to end, machines that stay switched
    off, and the steps in words. Of those to end, others take the place of the `replaced`;
    `outdated` are those that stay although the file asks for others."""

    launches: tuple[LaunchRequest, ...] = ()
    updates: tuple[NodeUpdate, ...] = ()
    terminate: tuple[Instance, ...] = ()
    replaced: tuple[Instance, ...] = ()
    spare: tuple[Instance, ...] = ()
    outdated: tuple[Instance, ...] = ()
    steps: tuple[PlanStep, ...] = ()

    @property
    def empty(self) -> bool:
        return not (self.launches or self.updates or self.terminate)

    def without_endings(self) -> UpPlan:
        """The plan, with every machine left to live."""
        steps = tuple(step for step in self.steps if step.action != "terminate")
        return replace(self, terminate=(), replaced=(), steps=steps)

    @property
    def is_disruptive(self) -> bool:
        """Whether something that runs now would be interrupted."""
        return bool(self.terminate) or any(update.stops_ray for update in self.updates)


def plan_up(
    spec: ClusterSpec, observed: ObservedCluster, restart: RestartPolicy = "as needed"
) -> UpPlan:
    """The steps from what is there to what was asked for. A machine that cannot be reached does
    not count as there, so that it is tried for, or replaced."""
    classified = _classify(spec, observed.instances, restart)
    head, keep = classified.head, classified.keep
    action: Literal["use", "create"] = "use" if observed.uses_existing_hosts else "create"
    launches, steps = _launches(spec, head, keep, action)
    steps += [PlanStep("terminate", i.name, _why_replaced(spec, i)) for i in classified.replaced]
    steps += [PlanStep("terminate", i.name, _why_surplus(spec, i)) for i in classified.surplus]

    updates: list[NodeUpdate] = []
    head_stays = False
    if head is not None:
        mode, reason = _touch(head, observed, restart)
        head_stays = mode in (None, "update")
        _add(updates, steps, head, observed, mode, reason)
    for worker in keep:
        mode, reason = _touch(worker, observed, restart)
        if not head_stays and mode in (None, "update"):
            mode = "restart" if mode is None else "full"
            reason = "its head is new" if head is None else "its head restarts"
        _add(updates, steps, worker, observed, mode, reason)
    return UpPlan(
        launches=tuple(launches),
        updates=tuple(updates),
        terminate=(*classified.replaced, *classified.surplus),
        replaced=tuple(classified.replaced),
        spare=tuple(classified.spare),
        outdated=tuple(i for i in (head, *keep) if i is not None and _is_outdated(spec, i)),
        steps=tuple(steps),
    )


def needs_machines(
    spec: ClusterSpec, instances: Sequence[Instance], restart: RestartPolicy = "as needed"
) -> bool:
    """Whether machines are missing, as can be told from a list alone."""
    classified = _classify(spec, instances, restart)
    return bool(_launches(spec, classified.head, classified.keep)[0])


@dataclass
class _Classified:
    """Of what there is: the head, workers to keep, machines whose place others take, machines that
    are too many, and those that stay off."""

    head: Instance | None
    keep: list[Instance]
    replaced: list[Instance]
    surplus: list[Instance]
    spare: list[Instance]


def _classify(
    spec: ClusterSpec, instances: Sequence[Instance], restart: RestartPolicy
) -> _Classified:
    there = [i for i in instances if i.state not in NOT_THERE]
    # Whoever wants no restart, or nothing else, wants no other machine.
    replaced = [i for i in there if restart == "as needed" and _is_outdated(spec, i)]
    there = [i for i in there if i not in replaced]
    spare = spare_workers(spec, there)
    keep, surplus = _sort_out(spec, [i for i in there if i not in spare])
    # Two people who bring up one cluster in the same moment may leave two heads: the elder stays.
    heads = sorted((i for i in there if i.role == "head"), key=lambda i: i.created_at or 0.0)
    head = heads[0] if heads else None
    surplus += heads[1:]
    if head is not None and head.node_type != spec.head_node_type:
        replaced.append(head)
        head = None
    return _Classified(head, keep, replaced, surplus, spare)


def _is_outdated(spec: ClusterSpec, instance: Instance) -> bool:
    """Whether the file asks for another machine in its place now. One that does not say what it was
    made from is as asked for."""
    known = instance.made_from and instance.node_type in spec.node_types
    return bool(known) and instance.made_from != launch_hash(spec, instance.node_type)


def _touch(
    instance: Instance, observed: ObservedCluster, restart: RestartPolicy
) -> tuple[Mode | None, str]:
    """How much is to be done on a machine for its own sake, and why."""
    vitals = observed.probes.get(instance.id)
    goal = observed.desired_states[instance.id]
    if restart == "only":
        return "restart", "asked for by --restart-only"
    if instance.state in (State.STOPPED, State.STOPPING):
        return "full", "it is switched off"
    if vitals is None and instance.state is State.RUNNING:
        # It is asked again when it is worked on, and a Ray that then runs is left alone.
        return "update", "it did not say how it is"
    if vitals is None or not vitals.ray_runs:
        return "full", "Ray is not running on it"
    if vitals.applied_state == goal:
        return None, ""
    if vitals.applied_state.container != goal.container and restart != "never":
        return "full", "its container changed"
    if vitals.applied_state.volumes != goal.volumes and restart != "never":
        return "full", "its volumes changed"
    changed = "its files" if vitals.applied_state.files != goal.files else "its setup"
    if (vitals.applied_state.files, vitals.applied_state.setup) == (goal.files, goal.setup):
        return (None, "") if restart == "never" else ("restart", "its start commands changed")
    return ("update" if restart == "never" else "full"), f"{changed} changed"


def _add(
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
    """Workers that are switched off and stay so until the load asks for them: those beyond the
    number to start with."""
    workers = [i for i in instances if i.role == "worker" and i.node_type in spec.node_types]
    off = [i for i in workers if i.state in (State.STOPPED, State.STOPPING)]
    room = Counter(_wanted_workers(spec))
    room.subtract(i.node_type for i in workers if i not in off)
    spare = []
    for instance in sorted(off, key=lambda i: i.created_at or 0.0):
        room[instance.node_type] -= 1
        if room[instance.node_type] < 0:
            spare.append(instance)
    return spare


def _sort_out(
    spec: ClusterSpec, instances: Sequence[Instance]
) -> tuple[list[Instance], list[Instance]]:
    """Workers to keep and workers beyond what the spec allows, the youngest going first."""
    keep: list[Instance] = []
    surplus: list[Instance] = []
    room = Counter({name: t.max_workers for name, t in spec.node_types.items()})
    total = spec.scaling.max_workers
    for instance in sorted(instances, key=lambda i: i.created_at or 0.0):
        if instance.role == "head":
            continue
        if room[instance.node_type] > 0 and total > 0:
            room[instance.node_type] -= 1
            total -= 1
            keep.append(instance)
        else:
            surplus.append(instance)
    return keep, surplus


def _launches(
    spec: ClusterSpec,
    head: Instance | None,
    keep: Sequence[Instance],
    action: Literal["use", "create"] = "create",
) -> tuple[list[LaunchRequest], list[PlanStep]]:
    launches: list[LaunchRequest] = []
    steps: list[PlanStep] = []
    if head is None:
        launches.append(LaunchRequest(spec.head_node_type, "head", 1, secrets.token_hex(8)))
        steps.append(PlanStep(action, f"1 x {spec.head_node_type}", "the head"))
    have = Counter(i.node_type for i in keep)
    for name, wanted in _wanted_workers(spec).items():
        missing = wanted - have[name]
        if missing > 0:
            launches.append(LaunchRequest(name, "worker", missing, secrets.token_hex(8)))
            there = f", {have[name]} there" if have[name] else ""
            steps.append(PlanStep(action, f"{missing} x {name}", f"min_workers is {wanted}{there}"))
    return launches, steps


def _wanted_workers(spec: ClusterSpec) -> dict[str, int]:
    """How many workers of each type to start with. The old `initial_workers` asks for so many
    at the start, whatever the minimum."""
    wanted = {name: t.min_workers for name, t in spec.node_types.items()}
    short = (spec.scaling.initial_workers or 0) - sum(wanted.values())
    for name, node_type in spec.node_types.items():
        if short <= 0:
            break
        extra = min(short, node_type.max_workers - wanted[name])
        wanted[name] += extra
        short -= extra
    return wanted


def _why_replaced(spec: ClusterSpec, instance: Instance) -> str:
    why = "its node_config, ssh_user or volumes changed"
    if instance.role == "worker":
        return why
    if instance.node_type != spec.head_node_type:
        why = f"the head's node type is now {spec.head_node_type}"
    return f"{why}; what is on its disks goes with it"


def _why_surplus(spec: ClusterSpec, instance: Instance) -> str:
    if instance.role == "head":
        return "another head is older"
    node_type = spec.node_types.get(instance.node_type)
    if node_type is None:
        return f"node type {instance.node_type} is no longer in the file"
    return f"max_workers is {min(node_type.max_workers, spec.scaling.max_workers)}"
