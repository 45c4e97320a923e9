"""The words for why machines are launched, each with its numbers."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.scaling.placement import Unplaced
from shoal.scaling.scaling_plan import Cause, Reason
from shoal.scaling.workload import GangGroup, SingleNodeItem

_NAMED = 3


def because_of_minimum(node_type: str, wanted: int, have: int) -> Reason:
    """`min_workers` of a type is not reached."""
    text = f"min_workers of {node_type} is {wanted}; {have} there or on the way"
    return Reason(Cause.MIN_WORKERS, text, {"wanted": wanted, "have": have})


def because_of_initial_workers(wanted: int, have: int) -> Reason:
    """`initial_workers` is not reached."""
    text = f"initial_workers is {wanted}; {have} there or on the way"
    return Reason(Cause.INITIAL_WORKERS, text, {"wanted": wanted, "have": have})


def because_of_utilization(wanted: int, have: int) -> Reason:
    """Nodes are busier than `target_utilization_fraction` wants them."""
    text = f"target_utilization_fraction asks for {wanted} workers at this load; {have} counted"
    return Reason(Cause.UTILIZATION, text, {"wanted": wanted, "have": have})


def because_of_floors(floors: Sequence[SingleNodeItem], lacking: int) -> Reason:
    """`request_resources` asks for more than the whole cluster has."""
    total = sum(floor.item.count for floor in floors)
    text = f"request_resources asks for {_named(floors)}; {lacking:,} of {total:,} have no node"
    return Reason(Cause.FLOOR, text, {"lacking": lacking, "asked": total})


def because_of_gangs(
    teams: Sequence[GangGroup], packed: Sequence[SingleNodeItem], unplaced: Unplaced
) -> Reason:
    """Placement groups have no room."""
    parts = [f"{n:,} x {t.gang}" for t, n in zip(teams, unplaced.teams, strict=True) if n]
    parts += [f"{n:,} x {g.subject}" for g, n in zip(packed, unplaced.loose, strict=True) if n]
    lacking = sum(unplaced.teams) + sum(unplaced.loose)
    return Reason(Cause.GANG, f"no room for {_some(parts)}", {"lacking": lacking})


def because_of_demand(tasks: Sequence[SingleNodeItem], lacking: int, displaced: int) -> Reason:
    """Tasks and actors have no room, or will have none: so many of them stand for the work of a
    machine that is being taken away."""
    total = sum(task.item.count for task in tasks)
    text = f"{lacking:,} of {total:,} pending ({_named(tasks)}) have no room; cheapest mix found"
    if displaced:
        text += f"; {displaced:,} for work on machines that will be taken away"
    return Reason(
        Cause.DEMAND, text, {"pending": total, "lacking": lacking, "displaced": displaced}
    )


def _named(loose: Sequence[SingleNodeItem]) -> str:
    largest = sorted(loose, key=lambda entry: (-entry.item.count, entry.shape))
    return _some([f"{entry.item.count:,} x {entry.subject}" for entry in largest])


def _some(parts: Sequence[str]) -> str:
    more = f" and {len(parts) - _NAMED} more kinds" if len(parts) > _NAMED else ""
    return ", ".join(parts[:_NAMED]) + more
