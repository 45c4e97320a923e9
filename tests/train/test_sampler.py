"""Which worker takes which samples."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.train.torch.sampler import ElasticSampler, StepPlan, pass_order


@st.composite
def _plans(draw: st.DrawFn) -> StepPlan:
    length = draw(st.integers(1, 200))
    return StepPlan(
        length,
        draw(st.integers(0, length - 1)),
        size=draw(st.integers(1, 6)),
        local_batch=draw(st.integers(1, 9)),
        micro_batches=draw(st.integers(1, 3)),
    )


@given(_plans())
def test_a_plan_serves_each_sample_that_is_left_once(plan: StepPlan) -> None:
    served = [
        sample
        for step in range(len(plan))
        for rank in range(plan.size)
        for first, end in plan.micro_shares(step, rank)
        for sample in range(first, end)
    ]
    assert sorted(served) == list(range(plan.start, plan.length))


@given(_plans())
def test_every_worker_has_samples_unless_the_pass_has_fewer_than_workers(plan: StepPlan) -> None:
    for step, rank in itertools.product(range(len(plan)), range(plan.size)):
        if plan.length - plan.start >= plan.size:
            assert plan.micro_shares(step, rank)


@given(_plans())
def test_only_the_last_step_is_uneven_and_no_worker_gets_more_than_one_sample_more(
    plan: StepPlan,
) -> None:
    for step in range(len(plan) - 1):
        assert plan.samples(step) == plan.batch
    for step in range(len(plan)):
        counts = [end - first for first, end in (plan.share(step, r) for r in range(plan.size))]
        assert max(counts) - min(counts) <= 1
        assert max(counts) <= plan.local_batch * plan.micro_batches + 1


def test_a_plan_may_drop_the_uneven_last_step() -> None:
    plan = StepPlan(25, 0, size=2, local_batch=5, drop_last=True)
    assert len(plan) == 2
    assert plan.end(1) == 20


@pytest.mark.parametrize("replicas", [1, 3, 5])
@pytest.mark.parametrize("length", [9, 15, 25])
@pytest.mark.parametrize("index", [0, 4, 18])
@pytest.mark.parametrize("shuffle", [True, False])
def test_the_sampler_gives_all_workers_the_same_number_of_samples(
    replicas: int, length: int, index: int, shuffle: bool
) -> None:
    sampler = ElasticSampler(range(length), shuffle)
    sampler.num_replicas = replicas
    sampler.set_epoch(1, index)
    left = length - index % length
    counts = dict.fromkeys(range(length), 0)
    for rank in range(replicas):
        sampler.rank = rank
        samples = list(sampler)
        assert len(samples) == len(sampler) == -(-left // replicas)
        assert samples == list(sampler)
        for sample in samples:
            counts[sample] += 1
    assert sum(1 for count in counts.values() if count) >= left
    assert max(counts.values()) <= 2


def test_passes_differ_when_shuffled_and_only_then() -> None:
    assert pass_order(20, True, 1) != pass_order(20, True, 2)
    assert pass_order(20, True, 1) == pass_order(20, True, 1)
    assert pass_order(20, False, 1) == pass_order(20, False, 2) == list(range(20))
