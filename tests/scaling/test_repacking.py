"""Items that are moved to make room are neither lost nor put where they do not fit."""

from __future__ import annotations

import random

import pytest

from shoal.scaling.demand import Shape
from shoal.scaling.exact_search import distinct_bins_pack
from shoal.scaling.repacking import repack
from shoal.scaling.resource_vectors import ResourceSpace


@pytest.mark.parametrize("seed", range(200))
def test_what_is_packed_by_moving_items_fits(seed: int) -> None:
    rng = random.Random(seed)
    shapes = [Shape.of({"CPU": c, "GPU": g}) for c in (1, 2, 3) for g in (0, 1)]
    space = ResourceSpace(shapes, [{"CPU": 8.0, "GPU": 2.0}])
    items = [space.item(rng.choice(shapes), rng.randint(1, 4)) for _ in range(4)]
    spread = [[space.item(rng.choice(shapes), rng.randint(1, 3))] for _ in range(rng.randint(0, 2))]
    labels = space.label_class({})
    bins = [
        (space.vector({"CPU": rng.choice([2, 4, 8]), "GPU": rng.choice([0, 1, 2])}), labels)
        for _ in range(rng.randint(3, 6))
    ]
    free = repack(space, items, bins, spread=spread)
    if free is None:
        return
    packed = [*items, *(item for gang in spread for item in gang)]
    for axis in range(len(space.names)):
        needed = sum(item.amounts[axis] * item.count for item in packed)
        assert sum(f[axis] for f in free) == sum(b[axis] for b, _ in bins) - needed
        assert all(f[axis] >= 0 for f in free)
    assert distinct_bins_pack(space, spread, items, bins, 1_000_000)
