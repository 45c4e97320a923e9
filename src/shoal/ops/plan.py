"""What `up` would do, decided from data alone: what is asked for, what is there, what lives.

Nothing here acts. `ops.up` carries a plan out, and a person sees it first.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Literal

from shoal.bootstrap.receipt import Receipt
from shoal.events import PlanStep
from shoal.providers.base import Instance, Launch
from shoal.spec.model import ClusterSpec


@dataclass(frozen=True)
class UpPlan:
    """Machines to create, nodes to (re)start, machines to end, and the steps in words."""

    launches: tuple[Launch, ...] = ()
    restart: tuple[Instance, ...] = ()
    terminate: tuple[Instance, ...] = ()
    steps: tuple[PlanStep, ...] = ()

    @property
    def empty(self) -> bool:
        return not (self.launches or self.restart or self.terminate)

    @property
    def disturbs(self) -> bool:
        """Whether something that runs now would be interrupted."""
        return any(step.action in ("restart", "terminate") for step in self.steps)


@dataclass(frozen=True)
class Seen:
    """What was found of the cluster: its machines, the receipts on them against what would be
    done now, and which of them Ray counts as alive."""

    instances: Sequence[Instance] = ()
    receipts: Mapping[str, Receipt] = field(default_factory=dict)
    goals: Mapping[str, Receipt] = field(default_factory=dict)
    alive: AbstractSet[str] = frozenset()


def plan_up(spec: ClusterSpec, seen: Seen, *, no_restart: bool = False) -> UpPlan:
    """The steps from what is there to what was asked for."""
    head = next((i for i in seen.instances if i.role == "head"), None)
    keep, surplus = _sort_out(spec, seen.instances)
    if head is not None and head.node_type != spec.head_node_type:
        surplus.append(head)
        head = None
    launches, steps = _launches(spec, head, keep)
    steps += [PlanStep("terminate", i.name, _why_surplus(spec, i)) for i in surplus]

    restart = []
    head_stays = head is not None and not _why_restart(head, seen, no_restart)
    for instance in [head, *keep] if head is not None else keep:
        reason = _why_restart(instance, seen, no_restart)
        if not reason and not head_stays:
            reason = "its head is new" if head is None else "its head restarts"
        if reason:
            restart.append(instance)
            action: Literal["restart", "start"] = (
                "restart" if instance.id in seen.alive else "start"
            )
            steps.append(PlanStep(action, instance.name, reason))
    return UpPlan(tuple(launches), tuple(restart), tuple(surplus), tuple(steps))


def _sort_out(
    spec: ClusterSpec, instances: Sequence[Instance]
) -> tuple[list[Instance], list[Instance]]:
    """Workers to keep and workers beyond what the spec allows, the youngest going first."""
    keep: list[Instance] = []
    surplus: list[Instance] = []
    room = Counter({name: t.max_workers for name, t in spec.node_types.items()})
    total = spec.scaling.max_workers
    for instance in sorted(instances, key=lambda i: i.created_at):
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
    spec: ClusterSpec, head: Instance | None, keep: Sequence[Instance]
) -> tuple[list[Launch], list[PlanStep]]:
    launches: list[Launch] = []
    steps: list[PlanStep] = []
    if head is None:
        launches.append(Launch(spec.head_node_type, "head", 1, secrets.token_hex(8)))
        steps.append(PlanStep("create", f"1 x {spec.head_node_type}", "the head"))
    have = Counter(i.node_type for i in keep)
    for name, wanted in _wanted_workers(spec).items():
        missing = wanted - have[name]
        if missing > 0:
            launches.append(Launch(name, "worker", missing, secrets.token_hex(8)))
            reason = f"min_workers is {wanted}" + (f", {have[name]} there" if have[name] else "")
            steps.append(PlanStep("create", f"{missing} x {name}", reason))
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


def _why_surplus(spec: ClusterSpec, instance: Instance) -> str:
    if instance.role == "head":
        return f"the head's node type is now {spec.head_node_type}"
    node_type = spec.node_types.get(instance.node_type)
    if node_type is None:
        return f"node type {instance.node_type} is no longer in the file"
    return f"max_workers is {min(node_type.max_workers, spec.scaling.max_workers)}"


def _why_restart(instance: Instance, seen: Seen, no_restart: bool) -> str:
    if instance.id not in seen.alive:
        return "Ray is not running on it"
    if no_restart or seen.receipts.get(instance.id) == seen.goals.get(instance.id):
        return ""
    return "its setup or start commands changed"
