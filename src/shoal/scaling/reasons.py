"""The reasons for launches, each as a sentence with its numbers."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.scaling.placement import Unplaced
from shoal.scaling.scaling_plan import Cause, Reason
from shoal.scaling.workload import GangGroup, SingleNodeItem

_MAX_LISTED = 3


def because_of_minimum(node_type: str, target: int, current: int) -> Reason:
    """The cluster has fewer workers of a type than `min_workers`."""
    text = f"min_workers of {node_type} is {target}; {current} running or launching"
    return Reason(Cause.MIN_WORKERS, text, {"target": target, "current": current})


def because_of_initial_workers(target: int, current: int) -> Reason:
    """The cluster has fewer workers than `initial_workers`."""
    text = f"initial_workers is {target}; {current} running or launching"
    return Reason(Cause.INITIAL_WORKERS, text, {"target": target, "current": current})


def because_of_utilization(target: int, current: int) -> Reason:
    """Utilization is above `target_utilization_fraction`."""
    text = f"target_utilization_fraction needs {target} workers at this load; there are {current}"
    return Reason(Cause.UTILIZATION, text, {"target": target, "current": current})


def because_of_floors(floors: Sequence[SingleNodeItem], lacking: int) -> Reason:
    """`request_resources` needs more than the total capacity of the cluster."""
    total = sum(floor.item.count for floor in floors)
    text = f"request_resources needs {_described(floors)}; {lacking:,} of {total:,} do not fit"
    return Reason(Cause.FLOOR, text, {"lacking": lacking, "requested": total})


def because_of_gangs(
    gang_groups: Sequence[GangGroup],
    strict_pack_gangs: Sequence[SingleNodeItem],
    unplaced: Unplaced,
) -> Reason:
    """Placement groups do not fit."""
    parts = [
        f"{n:,} x {group.gang}"
        for group, n in zip(gang_groups, unplaced.gang_groups, strict=True)
        if n
    ]
    parts += [
        f"{n:,} x {gang.subject}"
        for gang, n in zip(strict_pack_gangs, unplaced.strict_pack_gangs, strict=True)
        if n
    ]
    lacking = sum(unplaced.gang_groups) + sum(unplaced.strict_pack_gangs)
    return Reason(
        Cause.GANG,
        f"{_listed(parts)} {'does' if lacking == 1 else 'do'} not fit",
        {"lacking": lacking},
    )


def because_of_demand(tasks: Sequence[SingleNodeItem], lacking: int, interrupted: int) -> Reason:
    """Pending tasks and actors do not fit. `interrupted` of the requests stand for the work of one
    interrupted node each."""
    total = sum(task.item.count for task in tasks)
    count = f"{lacking:,}" if lacking == total else f"{lacking:,} of {total:,}"
    subject = f"{count} pending {'task/actor' if total == 1 else 'tasks/actors'}"
    shapes = f"of {tasks[0].subject}" if len(tasks) == 1 else f"({_described(tasks)})"
    verb = "does" if lacking == 1 else "do"
    text = f"{subject} {shapes} {verb} not fit; adding the cheapest nodes"
    if interrupted:
        nodes = "node" if interrupted == 1 else "nodes"
        text += f"; includes the work of {interrupted:,} interrupted {nodes}"
    return Reason(
        Cause.DEMAND, text, {"pending": total, "lacking": lacking, "interrupted": interrupted}
    )


def _described(single_items: Sequence[SingleNodeItem]) -> str:
    largest = sorted(single_items, key=lambda entry: (-entry.item.count, entry.shape))
    return _listed([f"{entry.item.count:,} x {entry.subject}" for entry in largest])


def _listed(parts: Sequence[str]) -> str:
    more = f" and {len(parts) - _MAX_LISTED} more shapes" if len(parts) > _MAX_LISTED else ""
    return ", ".join(parts[:_MAX_LISTED]) + more
