"""At the beginning of a generation: who is the furthest, and what the others get from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from shoal.train.worker import state_transfer
from shoal.train.worker.accumulation import Deltas
from shoal.train.worker.generation import Generation


@dataclass(frozen=True)
class Standing:
    """How far a member is. A joiner has no state. With several optimizers in a loop, a worker may
    have made the step of one and not of the next when a peer was lost."""

    has_state: bool
    kept_ticks: int
    steps: int
    merged_ticks: int


@dataclass
class Common:
    """What all members have in common from here on, beside the states."""

    tick: int
    step: int
    totals: Deltas
    merged_ticks: int
    log: dict[int | None, list[Any]] = field(default_factory=dict)
    epoch: int | None = None


@dataclass(frozen=True)
class Synced:
    common: Common
    states: dict[str, Any] | None  # None: this worker has them already
    source_trained: bool


def sync_state(
    generation: Generation,
    standing: Standing,
    common: Common,
    snapshot: Callable[[], dict[str, Any]],
) -> Synced:
    """Take over from the most advanced member: everybody what is common, and those that are behind
    its states too. If all are joiners, that member is rank 0."""
    standings: list[Standing] = generation.exchange(standing)
    source = max(range(generation.size), key=lambda rank: (*_order(standings[rank]), -rank))
    behind = [
        rank
        for rank, each in enumerate(standings)
        if rank != source and _order(each)[:3] < _order(standings[source])[:3]
    ]
    if all(not each.has_state for each in standings):
        behind = [rank for rank in range(generation.size) if rank != source]
    packed, share = None, None
    if generation.rank == source:
        packed = state_transfer.pack(snapshot() if behind else {})
        share = (common, packed.structure, packed.layouts)
    common, structure, layouts = generation.exchange(share)[source]
    if packed is not None:
        for rank in behind:
            generation.send(state_transfer.as_bytes(packed.tensors), rank)
    if generation.rank not in behind:
        return Synced(common, None, standings[source].has_state)
    tensors = state_transfer.allocate(layouts)
    generation.receive(state_transfer.as_bytes(tensors), source)
    states = state_transfer.unpack(structure, tensors)
    return Synced(common, states, standings[source].has_state)


def _order(standing: Standing) -> tuple[bool, int, int, int]:
    return standing.has_state, standing.kept_ticks, standing.steps, standing.merged_ticks
