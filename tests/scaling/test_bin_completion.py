"""Demand that fills nodes to the last CPU is packed, and what is packed really fits."""

from __future__ import annotations

import random

import pytest

from shoal.scaling import History, plan
from shoal.scaling.bin_completion import complete_bins
from shoal.scaling.demand import LabelRule, Shape
from shoal.scaling.resource_vectors import ResourceSpace
from tests.scaling.clusters import HEAD, demand, node_type, ready, spec, tasks
from tests.scaling.test_exact_cost import packs


# Amounts of CPU and GPU. Packings that place one task after the other leave some of these over.
@pytest.mark.parametrize(
    ("free", "pieces"),
    [
        (
            "12/4 4/3 6/3 4/3 3/0 11/2 4/2",
            "1/1 1/2 2/0 2/1 2/1 3/0 3/0 4/1 4/2 5/0 5/3 6/0 6/2",
        ),
        (
            "11/4 7/4 2/1 5/2 14/3 15/2 6/4",
            "1/0 1/1 1/1 1/1 1/1 1/2 2/1 3/0 3/1 5/0 5/2 6/0 7/1 10/0 13/2",
        ),
    ],
)
def test_tasks_that_fill_the_nodes_to_the_last_cpu_launch_nothing(free: str, pieces: str) -> None:
    worker = node_type("t0", {"CPU": 16, "GPU": 4})
    nodes = [ready(f"n{i}", worker, amounts) for i, amounts in enumerate(cpu_and_gpu(free))]
    pending = demand(*(tasks(1, **amounts) for amounts in cpu_and_gpu(pieces)))
    result = plan(spec(worker), [HEAD, *nodes], pending, History(), 0.0)
    assert not result.launches
    assert not result.unmet


def cpu_and_gpu(text: str) -> list[dict[str, float]]:
    pairs = [entry.split("/") for entry in text.split()]
    return [{"CPU": float(cpu), "GPU": float(gpu)} for cpu, gpu in pairs]


@pytest.mark.parametrize("seed", range(200))
def test_bins_are_filled_exactly_when_and_only_when_the_items_fit(seed: int) -> None:
    """In half of the cases the GPUs are dealt again, so that the items may not fit."""
    rng = random.Random(seed)
    sizes, needs = [], []
    for _ in range(rng.randint(2, 4)):
        cpu, gpu = rng.randint(1, 8), rng.randint(0, 3)
        sizes.append({"CPU": float(cpu), "GPU": float(gpu)})
        while cpu:
            some_cpu, some_gpu = rng.randint(1, cpu), rng.randint(0, gpu)
            needs.append([some_cpu, some_gpu])
            cpu, gpu = cpu - some_cpu, gpu - some_gpu
    if seed % 2:
        gpus = [gpu for _, gpu in needs]
        rng.shuffle(gpus)
        needs = [[cpu, gpu] for (cpu, _), gpu in zip(needs, gpus, strict=True)]
    shapes = [Shape.of({"CPU": cpu, "GPU": gpu}) for cpu, gpu in needs]
    space = ResourceSpace(shapes, sizes)
    items = [space.item(shape, shapes.count(shape)) for shape in sorted(set(shapes))]
    bins = [(space.vector(size), space.label_class({})) for size in sizes]
    free = complete_bins(space, items, bins)
    assert (free is not None) == packs([dict(shape.resources) for shape in shapes], sizes)
    if free is not None:
        for axis in range(len(space.names)):
            needed = sum(item.amounts[axis] * item.count for item in items)
            assert sum(f[axis] for f in free) == sum(b[axis] for b, _ in bins) - needed
            assert all(0 <= f[axis] <= b[axis] for f, (b, _) in zip(free, bins, strict=True))


def test_bins_are_filled_with_items_that_match_their_labels() -> None:
    only_a = Shape.of({"CPU": 2}, [[LabelRule("pool", ("a",))]])
    space = ResourceSpace([only_a, Shape.of({"CPU": 2}), Shape.of({"CPU": 1})])
    items = [space.item(only_a, 2), space.item(Shape.of({"CPU": 2}), 1)]
    a, b = space.label_class({"pool": "a"}), space.label_class({"pool": "b"})
    two, four = space.vector({"CPU": 2}), space.vector({"CPU": 4})
    assert complete_bins(space, items, [(four, a), (two, b)]) == [(0,), (0,)]
    assert complete_bins(space, items, [(two, a), (four, b)]) is None


def test_bins_with_much_to_spare_are_left_to_other_packings() -> None:
    shape = Shape.of({"CPU": 2})
    space = ResourceSpace([shape])
    bins = [(space.vector({"CPU": 8}), space.label_class({}))]
    assert complete_bins(space, [space.item(shape, 4)], bins) == [(0,)]
    assert complete_bins(space, [space.item(shape, 1)], bins) is None
