"""The noise of gradients, driven as the data-parallel wrapper drives it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from shoal.train.torch.gradient_noise_scale import AdamGradientNoiseScale, GradientNoiseScale

SIZE = 200


def _optimizer(*sizes: int, cls: Any = torch.optim.SGD, **kwargs: Any) -> Any:
    groups = [{"params": [torch.nn.Parameter(torch.zeros(n))]} for n in sizes]
    return cls(groups, lr=0.1, **kwargs)


def _params(optimizer: Any) -> list[Any]:
    return [param for group in optimizer.param_groups for param in group["params"]]


class Gradients:
    """Gradients with a given mean and standard deviation per component, per parameter."""

    def __init__(self, optimizer: Any, mean: list[float], deviation: list[float]) -> None:
        self._shapes = [param.shape for param in _params(optimizer)]
        self._mean, self._deviation = mean, deviation
        self._random = torch.Generator().manual_seed(0)

    def draw(self, batch: float = 1.0) -> list[torch.Tensor]:
        """Means over `batch` times the initial batch size."""
        return [
            mean + dev / math.sqrt(batch) * torch.randn(shape, generator=self._random)
            for shape, mean, dev in zip(self._shapes, self._mean, self._deviation, strict=True)
        ]


def _mean(gradients: list[list[torch.Tensor]]) -> list[torch.Tensor]:
    return [torch.stack(parts).mean(dim=0) for parts in zip(*gradients, strict=True)]


def _step_of_replicas(
    gns: GradientNoiseScale, optimizer: Any, grads: Any, loss_scale: float = 1
) -> bool:
    """One step of several replicas, seen by the first of them."""
    params, replicas = _params(optimizer), len(grads)
    grads = [[grad * loss_scale for grad in replica] for replica in grads]
    sums = torch.zeros(len(optimizer.param_groups), dtype=torch.float64)
    for replica in grads[1:]:
        gns.observe_local(params, replica)
        sums += gns.local_sqr
        gns.discard()
    gns.observe_local(params, grads[0])
    gns.observe_reduced(params, _mean(grads))
    gns.count_pass()
    done = gns.complete(replicas, gns.local_sqr + sums)
    gns.prepare_step(gns.accum_scale * gns.accum_count)
    return done


def test_without_samples_a_larger_batch_is_worth_no_more() -> None:
    gns = GradientNoiseScale(Mock(), _optimizer(1), num_replicas=1)
    assert gns.gain(2.0) == pytest.approx(1.0, abs=1e-5)
    assert gns.get_progress() == 0


def test_the_gain_follows_from_norm_and_variance() -> None:
    gns = GradientNoiseScale(Mock(), _optimizer(1), num_replicas=1)
    state = gns.state_dict()
    state["var_avg"]["value"], state["sqr_avg"]["value"] = [3.0], [1.0]
    gns.load_state_dict(state)
    assert gns.gain(3.0) == pytest.approx(2.0)


@pytest.mark.parametrize("replicas", [2, 4])
@pytest.mark.parametrize("accum_scale", [1.0, 3.0])
def test_replicas_measure_norm_and_variance_at_the_initial_batch_size(
    replicas: int, accum_scale: float
) -> None:
    optimizer = _optimizer(SIZE, SIZE)
    gns = GradientNoiseScale(Mock(), optimizer, accum_scale=accum_scale, num_replicas=replicas)
    source = Gradients(optimizer, mean=[0.5, 0.5], deviation=[1.0, 2.0])
    for _ in range(200):
        grads = [source.draw(accum_scale / replicas) for _ in range(replicas)]
        assert _step_of_replicas(gns, optimizer, grads)
    assert list(gns.raw_sqr_avg) == pytest.approx([SIZE * 0.25, SIZE * 0.25], rel=0.4)
    assert list(gns.raw_var_avg) == pytest.approx([SIZE * 1.0, SIZE * 4.0], rel=0.1)
    assert gns.sqr_avg() == pytest.approx(gns.raw_sqr_avg.sum())
    assert gns.var_avg() == pytest.approx(gns.raw_var_avg.sum())


def test_one_gradient_per_step_is_compared_with_the_one_before() -> None:
    optimizer = _optimizer(SIZE)
    gns = GradientNoiseScale(Mock(), optimizer, accum_scale=1.0, num_replicas=1)
    source = Gradients(optimizer, mean=[0.3], deviation=[1.0])
    for _ in range(500):
        gns.count_pass()
        gns.observe_consecutive(_params(optimizer), source.draw())
        gns.prepare_step(1.0)
    assert gns.raw_sqr_avg[0] == pytest.approx(SIZE * 0.09, rel=0.25)
    assert gns.raw_var_avg[0] == pytest.approx(SIZE, rel=0.1)


def test_accumulated_passes_are_samples_of_their_own() -> None:
    optimizer = _optimizer(SIZE)
    gns = GradientNoiseScale(Mock(), optimizer, accum_scale=1.0, num_replicas=1)
    source = Gradients(optimizer, mean=[0.3], deviation=[1.0])
    params = _params(optimizer)
    for _ in range(200):
        total = torch.zeros(SIZE)
        for number in range(4):
            total = total + source.draw()[0]
            gns.observe_pass(params, [total])
            gns.count_pass(synchronized=number == 3)
            assert gns.should_zero_grad == (number == 3)
        assert gns.accum_count == 4
        gns.observe_reduced(params, [total], divisor=4)
        assert gns.complete(samples=4)
        gns.prepare_step(gns.accum_scale * gns.accum_count)
    assert gns.raw_sqr_avg[0] == pytest.approx(SIZE * 0.09, rel=0.25)
    assert gns.raw_var_avg[0] == pytest.approx(SIZE, rel=0.1)


def test_replicas_that_accumulate_give_one_sample_each() -> None:
    optimizer = _optimizer(SIZE)
    gns = GradientNoiseScale(Mock(), optimizer, accum_scale=2.0, num_replicas=2)
    source = Gradients(optimizer, mean=[0.3], deviation=[1.0])
    params = _params(optimizer)
    for _ in range(200):
        sums = [source.draw()[0] + source.draw()[0] + source.draw()[0] for _ in range(2)]
        for number in range(3):
            gns.count_pass(synchronized=number == 2)
        for local in sums:
            gns.observe_local(params, [local], divisor=3)
        gns.observe_reduced(params, [(sums[0] + sums[1]) / 6])
        assert gns.complete(samples=2)
        gns.prepare_step(gns.accum_scale * gns.accum_count)
    assert gns.raw_sqr_avg[0] == pytest.approx(SIZE * 0.09, rel=0.25)
    assert gns.raw_var_avg[0] == pytest.approx(SIZE, rel=0.1)


def test_the_first_replicas_replace_what_consecutive_gradients_measured() -> None:
    optimizer = _optimizer(2)
    gns = GradientNoiseScale(Mock(), optimizer, accum_scale=1.0, num_replicas=1)
    for value in (1.0, 5.0):
        gns.observe_consecutive(_params(optimizer), [torch.full((2,), value)])
    assert gns.raw_var_avg[0] > 1
    _step_of_replicas(gns, optimizer, [[torch.tensor([1.0, 2.0])], [torch.tensor([1.0, 2.0])]])
    assert gns.raw_var_avg[0] == 0
    assert gns.raw_sqr_avg[0] == pytest.approx(5.0)


def test_buckets_and_flat_buffers_give_the_same_norms() -> None:
    params = [torch.nn.Parameter(torch.zeros(n)) for n in (3, 4, 5)]
    gns = GradientNoiseScale(Mock(), torch.optim.SGD(params, lr=0.1), num_replicas=1)
    grads = [torch.randn(n) for n in (3, 4, 5)]
    expected = float(sum(grad.square().sum() for grad in grads))
    gns.observe_local(params[:1], grads[:1])
    gns.observe_local(params[1:], grads[1:])
    assert gns.local_sqr.tolist() == pytest.approx([expected])
    gns.discard()
    gns.observe_local(params, grads, buffer=torch.cat(grads))
    assert gns.local_sqr.tolist() == pytest.approx([expected])


@pytest.fixture
def _process_group() -> Iterator[None]:
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("_process_group")
def test_the_buckets_of_distributed_data_parallel_are_observed() -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(100, 80), torch.nn.ReLU(), torch.nn.Linear(80, 4000)
    )  # the first bucket takes 1 MiB
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters()}]
    gns = GradientNoiseScale(Mock(), torch.optim.SGD(groups, lr=0.1), num_replicas=1)
    buckets = 0

    def observe(bucket: Any) -> Any:
        nonlocal buckets
        buckets += 1
        gns.observe_local(bucket.parameters(), bucket.gradients(), bucket.buffer())
        future: Any = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    replica = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.01)
    replica.register_comm_hook(None, lambda _, bucket: observe(bucket))
    for _ in range(2):  # the buckets are built again after the first pass
        gns.discard()
        model.zero_grad()
        replica(torch.randn(8, 100)).square().sum().backward()
    assert buckets > 2
    expected = [
        float(sum(param.grad.square().sum() for param in layer.parameters()))
        for layer in (model[0], model[2])
    ]
    assert gns.local_sqr.tolist() == pytest.approx(expected, rel=1e-5)


def test_half_precision_gradients_do_not_overflow() -> None:
    param = torch.nn.Parameter(torch.zeros(1000, dtype=torch.float16))
    gns = GradientNoiseScale(Mock(), torch.optim.SGD([param], lr=0.1), num_replicas=1)
    gns.observe_local([param], [torch.full((1000,), 300.0, dtype=torch.float16)])
    assert gns.local_sqr.tolist() == pytest.approx([1000 * 300.0**2], rel=1e-3)


def test_gradients_of_a_scaled_loss_are_scaled_back() -> None:
    results = []
    for loss_scale in (1.0, 1024.0):
        optimizer = _optimizer(SIZE)
        scaler = Mock(**{"get_scale.return_value": loss_scale})
        gns = GradientNoiseScale(Mock(), optimizer, scaler, num_replicas=2, accum_scale=1.0)
        source = Gradients(optimizer, mean=[0.3], deviation=[1.0])
        for _ in range(3):
            _step_of_replicas(gns, optimizer, [source.draw(), source.draw()], loss_scale)
        grads = [[grad * loss_scale for grad in source.draw()] for _ in range(2)]
        for grad in grads:
            gns.observe_consecutive(_params(optimizer), grad)
        results.append((gns.sqr_avg(), gns.var_avg()))
    assert results[0] == pytest.approx(results[1])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_steps_with_invalid_gradients_are_left_out(bad: float) -> None:
    optimizer = _optimizer(SIZE)
    replicated = GradientNoiseScale(Mock(), optimizer, num_replicas=2, accum_scale=1.0)
    single = GradientNoiseScale(Mock(), optimizer, num_replicas=1, accum_scale=1.0)
    source = Gradients(optimizer, mean=[0.1], deviation=[0.0])
    for number in range(100):
        grads = [source.draw(), source.draw()]
        if number % 2:
            grads[0][0][7] = bad
        assert _step_of_replicas(replicated, optimizer, grads) == (number % 2 == 0)
        single.observe_consecutive(_params(optimizer), grads[0])
        single.prepare_step(1.0)
    for gns in (replicated, single):
        assert gns.sqr_avg() == pytest.approx(SIZE * 0.01)
        assert np.all(np.isfinite(gns.raw_var_avg))
        assert gns.gain(2.0) == pytest.approx(1.0, abs=1e-3)


def test_after_many_samples_only_some_steps_are_observed() -> None:
    optimizer = _optimizer(2)
    gns = GradientNoiseScale(Mock(), optimizer, num_replicas=2, accum_scale=1.0)
    observed = []
    for _ in range(260):
        observed.append(gns.wants_sample)
        if observed[-1]:
            _step_of_replicas(gns, optimizer, [[torch.ones(2)], [torch.zeros(2)]])
        else:
            gns.count_pass()
            gns.prepare_step(1.0)
    assert all(observed[:200])
    assert sum(observed[200:]) == 12


def test_consecutive_gradients_are_observed_in_pairs_later() -> None:
    optimizer = _optimizer(2)
    gns = GradientNoiseScale(Mock(), optimizer, num_replicas=1, accum_scale=1.0)
    samples = []
    for _ in range(300):
        gns.observe_consecutive(_params(optimizer), [torch.ones(2)])
        gns.prepare_step(1.0)
        samples.append(gns.state_dict()["samples"])
    assert samples[200] == 200
    assert samples[-1] in (219, 220)


def test_the_state_is_plain_numbers_and_brings_everything_back() -> None:
    optimizer = _optimizer(3, 3)
    gns = GradientNoiseScale(Mock(), optimizer, num_replicas=2, accum_scale=1.0)
    source = Gradients(optimizer, mean=[0.3, 0.1], deviation=[1.0, 2.0])
    for _ in range(5):
        _step_of_replicas(gns, optimizer, [source.draw(), source.draw()])
    gns.set_progress(17.5)
    saved = json.loads(json.dumps(gns.state_dict()))
    after = []
    for target in (gns, GradientNoiseScale(Mock(), optimizer, num_replicas=2, accum_scale=1.0)):
        target.load_state_dict(saved)
        assert target.state_dict() == saved
        same = Gradients(optimizer, mean=[0.3, 0.1], deviation=[1.0, 2.0])
        _step_of_replicas(target, optimizer, [same.draw(), same.draw()])
        after.append(target.state_dict())
    assert after[0] == after[1] != saved


def test_a_dropped_step_leaves_nothing_behind() -> None:
    optimizer = _optimizer(2)
    gns = GradientNoiseScale(Mock(), optimizer, num_replicas=2, accum_scale=1.0)
    before = gns.state_dict()
    gns.observe_local(_params(optimizer), [torch.ones(2)])
    gns.count_pass(synchronized=False)
    gns.load_state_dict(before)
    assert gns.state_dict() == before
    assert (gns.accum_count, gns.should_zero_grad, gns.local_sqr.tolist()) == (0, True, [0.0])


def test_another_scale_begins_accumulation_again() -> None:
    optimizer = _optimizer(2)
    param = _params(optimizer)[0]
    gns = GradientNoiseScale(Mock(), optimizer, num_replicas=1, accum_scale=1.0)
    param.grad = torch.ones(2)
    gns.count_pass(synchronized=False)
    gns.set_accum_scale(1.0)
    assert (gns.accum_count, gns.should_zero_grad) == (1, False)
    gns.set_accum_scale(2.0)
    assert (gns.accum_count, gns.accum_scale, gns.should_zero_grad) == (0, 2.0, True)
    assert param.grad is None


class TestAdam:
    def _trained(self, steps: int, cls: Any = torch.optim.Adam, **kwargs: Any) -> tuple[Any, Any]:
        optimizer = _optimizer(2, cls=cls, **kwargs)
        param = _params(optimizer)[0]
        for _ in range(steps):
            param.grad = torch.tensor([100.0, 20.0])
            optimizer.step()
        return optimizer, AdamGradientNoiseScale(Mock(), optimizer, num_replicas=2, accum_scale=1.0)

    def test_gradients_count_as_the_optimizer_scales_them(self) -> None:
        optimizer, gns = self._trained(10)
        gns.observe_local(_params(optimizer), [torch.tensor([100.0, 20.0])])
        assert gns.local_sqr.tolist() == pytest.approx([2.0], rel=0.1)

    def test_a_component_that_had_no_gradient_does_not_outweigh_the_others(self) -> None:
        optimizer = _optimizer(100, cls=torch.optim.Adam)
        param = _params(optimizer)[0]
        gradient = torch.ones(100)
        gradient[0] = 0.0
        for _ in range(10):
            param.grad = gradient
            optimizer.step()
        gns = AdamGradientNoiseScale(Mock(), optimizer, num_replicas=2, accum_scale=1.0)
        gns.observe_local([param], [gradient + 1e-3])
        assert gns.local_sqr.tolist() == pytest.approx([99.0], rel=0.05)

    def test_the_first_steps_are_not_observed(self) -> None:
        optimizer, gns = self._trained(0)
        wanted = []
        for _ in range(7):
            wanted.append(gns.wants_sample)
            _params(optimizer)[0].grad = torch.ones(2)
            optimizer.step()
            gns.prepare_step(1.0)
        assert wanted == [False] * 5 + [True] * 2

    @pytest.mark.parametrize(
        "cls, kwargs",
        [(torch.optim.Adam, {}), (torch.optim.AdamW, {"amsgrad": True, "weight_decay": 0})],
    )
    def test_another_batch_size_shortens_the_averages_of_the_optimizer(
        self, cls: Any, kwargs: Any
    ) -> None:
        optimizer, gns = self._trained(500, cls, **kwargs)
        param = _params(optimizer)[0]
        state = optimizer.state[param]
        unbiased = state["exp_avg_sq"] / (1 - 0.999**500)
        gns.prepare_step(1.0)
        assert float(state["step"]) == 500
        gns.prepare_step(2.0)
        assert float(state["step"]) == 5
        assert (state["exp_avg_sq"] / (1 - 0.999**5)).tolist() == pytest.approx(unbiased.tolist())
        assert state["exp_avg"].tolist() == pytest.approx([100 * (1 - 0.9**5), 20 * (1 - 0.9**5)])
        before = param.detach().clone()
        param.grad = torch.tensor([100.0, 20.0])
        optimizer.step()
        moved = (before - param).tolist()
        assert moved == pytest.approx([0.1, 0.1], rel=0.05)  # the learning rate, as before
