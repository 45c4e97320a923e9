"""Machines for gangs that have no place: for whole gangs, or for none."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.scaling.bin_packing import pack
from shoal.scaling.free_capacity import FreeCapacity
from shoal.scaling.instance_selection import Market, Purchase
from shoal.scaling.placement import Unplaced, most, with_apart
from shoal.scaling.resource_vectors import Item
from shoal.scaling.workload import GangGroup, SingleNodeItem


def buy_gangs(
    market: Market,
    room: FreeCapacity,
    teams: Sequence[GangGroup],
    packed: Sequence[SingleNodeItem],
    unplaced: Unplaced,
) -> list[Purchase]:
    """What the unplaced gangs lack beside the room there is: for one team that spreads strictly,
    or for all others together, or, when the limits do not allow that, for as many whole gangs of
    one team as they do. The caller looks again at what is left."""
    for team, gangs in zip(teams, unplaced.teams, strict=True):
        if team.apart and gangs and (bought := market.buy_apart(room, team)):
            return bought
    room, _ = with_apart(room, teams)
    shared = [entry.item for entry in packed]
    everyone = [team.count for team in teams]
    if bought := market.buy_all(_lacking(room, teams, everyone, shared)) or []:
        return bought
    shared = _resized(room, packed, [p.item.count for p in packed], unplaced.loose)
    placed = [n - missing for n, missing in zip(everyone, unplaced.teams, strict=True)]
    for index, team in enumerate(teams):
        if team.apart or not unplaced.teams[index]:
            continue

        def with_more(gangs: int, index: int = index) -> list[Item]:
            counts = [n + gangs * (i == index) for i, n in enumerate(placed)]
            return _lacking(room, teams, counts, shared)

        gangs = most(unplaced.teams[index], lambda n: market.could_buy_all(with_more(n)))
        if gangs and (bought := market.buy_all(with_more(gangs)) or []):
            return bought
    nothing = [0] * len(packed)
    return market.buy(_resized(room, packed, unplaced.loose, nothing))


def _lacking(
    room: FreeCapacity, teams: Sequence[GangGroup], counts: Sequence[int], shared: Sequence[Item]
) -> list[Item]:
    """What so many gangs of each team, and the packed ones, lack in this room."""
    pairs = [(team, n) for team, n in zip(teams, counts, strict=True) if not team.apart]
    items = [*shared, *(i for team, n in pairs for i in team.items(room.frame, n))]
    left = pack(room, items)
    return [room.frame.resized(i, n) for i, n in zip(items, left, strict=True) if n]


def _resized(
    room: FreeCapacity, packed: Sequence[SingleNodeItem], counts: Sequence[int], less: Sequence[int]
) -> list[Item]:
    triples = zip(packed, counts, less, strict=True)
    return [room.frame.resized(entry.item, n - m) for entry, n, m in triples if n > m]
