"""Where the work would go in the room there is, and what is left without a place.

Gangs come before tasks, and a gang is placed whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shoal.scaling.bin_packing import pack
from shoal.scaling.free_capacity import FreeCapacity
from shoal.scaling.workload import GangGroup, SingleNodeItem


@dataclass(frozen=True)
class Unplaced:
    """How many of each team and of each loose item found no place."""

    teams: tuple[int, ...]
    loose: tuple[int, ...]

    def __bool__(self) -> bool:
        return any(self.teams) or any(self.loose)


def place(
    room: FreeCapacity, teams: Sequence[GangGroup], loose: Sequence[SingleNodeItem]
) -> Unplaced:
    """Lay everything into a copy of the room."""
    room, missing = with_apart(room, teams)
    together = [i for i, team in enumerate(teams) if not team.apart]
    items = [entry.item for entry in loose]
    bundles = [i for index in together for i in teams[index].items(room.frame, teams[index].count)]
    left = pack(room, [*bundles, *items])
    if not any(left[: len(bundles)]):
        return Unplaced(tuple(missing), tuple(left[len(bundles) :]))
    for index in together:
        missing[index] = _place_whole(room, teams[index])
    return Unplaced(tuple(missing), tuple(pack(room, items)))


def with_apart(room: FreeCapacity, teams: Sequence[GangGroup]) -> tuple[FreeCapacity, list[int]]:
    """The room once the gangs that spread strictly have been laid into it, and how many of each
    team found no place."""
    room = room.copy()
    return room, [_place_apart(room, team) if team.apart else 0 for team in teams]


def _place_apart(room: FreeCapacity, team: GangGroup) -> int:
    singles = [room.frame.resized(item, 1) for item in team.singles()]
    for placed in range(team.count):
        if room.place_apart(singles):
            return team.count - placed
    return 0


def _place_whole(room: FreeCapacity, team: GangGroup) -> int:
    """Place as many whole gangs as fit; how many do not."""

    def fits(gangs: int) -> bool:
        return not any(room.copy().pack(team.items(room.frame, gangs)))

    gangs = most(team.count, fits)
    room.pack(team.items(room.frame, gangs))
    return team.count - gangs


def most(limit: int, works: Callable[[int], bool]) -> int:
    """The largest number up to the limit that works, by halving: what works for some is taken
    to work for fewer."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if works(middle):
            low = middle
        else:
            high = middle - 1
    return low
