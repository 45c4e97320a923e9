"""Packing by moving items loses none and overfills no bin; the quick bounds are true."""

from __future__ import annotations

import random

import pytest

from shoal.scaling.demand import Shape
from shoal.scaling.exact_search import distinct_bins_pack
from shoal.scaling.packing_bounds import cannot_fit
from shoal.scaling.repacking import repack
from shoal.scaling.resource_vectors import ResourceSpace
from tests.scaling.test_exact_cost import packs


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


def test_space_that_no_item_can_use_does_not_count() -> None:
    shape = Shape.of({"CPU": 6})
    space = ResourceSpace([shape], [{"CPU": 8.0}])
    bins = [(space.vector({"CPU": 8}), space.label_class({}), 3)]
    assert not cannot_fit(space, [space.item(shape, 3)], bins)
    assert cannot_fit(space, [space.item(shape, 4)], bins)


@pytest.mark.parametrize("seed", range(200))
def test_items_that_are_found_not_to_fit_do_not(seed: int) -> None:
    rng = random.Random(seed)
    shapes = [Shape.of({"CPU": c, "GPU": g}) for c in (1, 2, 3) for g in (0, 1)]
    space = ResourceSpace(shapes, [{"CPU": 8.0, "GPU": 2.0}])
    needs = [rng.choice(shapes) for _ in range(rng.randint(4, 8))]
    sizes = [
        {"CPU": float(rng.choice([2, 4, 5])), "GPU": float(rng.choice([0, 1, 2]))}
        for _ in range(rng.randint(3, 4))
    ]
    labels = space.label_class({})
    bins = [(space.vector(size), labels, 1) for size in sizes]
    if cannot_fit(space, [space.item(shape, 1) for shape in needs], bins):
        assert not packs([dict(shape.resources) for shape in needs], sizes)
