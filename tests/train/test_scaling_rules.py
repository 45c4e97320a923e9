"""Learning rates at other batch sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from shoal.train.torch import metrics
from shoal.train.torch.gradient_noise_scale import AdamGradientNoiseScale, GradientNoiseScale
from shoal.train.torch.scaling_rules import (
    AdamScale,
    AdaScale,
    LEGWScale,
    LinearScale,
    ScalingRuleBase,
    SqrtScale,
)


@pytest.fixture(autouse=True)
def _fresh_metrics() -> Iterator[None]:
    metrics._reset()
    yield
    metrics._reset()


def _initialized(rule: ScalingRuleBase, **gns: Any) -> ScalingRuleBase:
    rule.initialize(Mock(gns=Mock(**gns)), torch.optim.SGD([torch.nn.Parameter(torch.ones(1))]))
    return rule


ADASCALE_CASES = [
    (0.5, [0.5, 0.5, 0.5, 0.6]),
    (1, [1, 1, 1, 1]),
    (2, [2, 2, 2, 1.5]),
    (4, [4, 4, 4, 2]),
    (10, [10, 10, 10, 2.5]),
]


@pytest.mark.parametrize(("scale", "factors"), ADASCALE_CASES)
def test_adascale_is_the_gain_of_each_group(scale: float, factors: list[float]) -> None:
    gns = {"raw_var_avg": np.array([1, 0, 0, 2]), "raw_sqr_avg": np.array([-1, 0, -1, 1])}
    assert list(_initialized(AdaScale(), **gns).scale_lr(scale)) == pytest.approx(factors)
    roots = list(np.sqrt(factors))
    assert list(_initialized(AdamScale(), **gns).scale_lr(scale)) == pytest.approx(roots)


def test_linear_and_square_root_rules() -> None:
    assert [LinearScale().scale_lr(scale) for scale in (0.5, 1, 7)] == [0.5, 1, 7]
    assert [SqrtScale().scale_lr(scale) for scale in (1, 4, 9, 16, 25)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("batch_size", "progress", "factors"),
    [
        (100, 5, [1 / 20, 1 / 40, 1 / 60, 1 / 80, 1 / 100]),
        (50, 400, [1, 1, 2 / 3, 0.5, 0.4]),
        (100, 400, [1, 2, 4 / 3, 1, 0.8]),
    ],
)
def test_legw_warms_up_for_longer_at_larger_batches(
    batch_size: int, progress: float, factors: list[float]
) -> None:
    metrics.set_batch_size(batch_size, None, None, False)
    rule = _initialized(LEGWScale(10, 1000), **{"get_progress.return_value": progress})
    assert [rule.scale_lr(scale) for scale in (1, 4, 9, 16, 25)] == pytest.approx(factors)


class Model:
    """A model of one parameter group per value, its optimizer, noise estimator and rule."""

    def __init__(
        self,
        rule: ScalingRuleBase,
        *values: list[float],
        optimizer: Any = torch.optim.SGD,
        accum_scale: float = 1.0,
        patch: bool = True,
        lr: float = 1e-3,
    ) -> None:
        self.params = [torch.nn.Parameter(torch.tensor(value)) for value in values]
        self.optimizer = optimizer([{"params": [param]} for param in self.params], lr=lr)
        self.require_backward_grad_sync = True
        estimator = AdamGradientNoiseScale if isinstance(rule, AdamScale) else GradientNoiseScale
        self.gns = estimator(self, self.optimizer, num_replicas=1, accum_scale=accum_scale)
        rule.initialize(self, self.optimizer, patch_optimizer=patch)


class Doubled(ScalingRuleBase):
    """What a user writes."""

    def scale_lr(self, scale: float) -> float:
        return 2 * scale


def test_the_optimizer_steps_with_the_scaled_rate_and_keeps_its_own() -> None:
    model = Model(Doubled(), [1.0], accum_scale=3.0, lr=0.1)
    model.params[0].grad = torch.ones(1)
    model.gns.count_pass()
    model.optimizer.step()
    assert model.params[0].item() == pytest.approx(1 - 0.1 * 2 * 3)
    assert model.optimizer.param_groups[0]["lr"] == 0.1
    assert model.gns.get_progress() == pytest.approx(model.gns.gain(3.0))


def test_each_group_has_its_own_factor() -> None:
    class PerGroup(ScalingRuleBase):
        def scale_lr(self, scale: float) -> list[float]:
            return [1.0, 10.0]

    model = Model(PerGroup(), [0.0], [0.0], lr=0.1)
    for param in model.params:
        param.grad = torch.ones(1)
    model.gns.count_pass()
    model.optimizer.step()
    assert [param.item() for param in model.params] == pytest.approx([-0.1, -1.0])


def test_the_rate_is_restored_after_a_step_that_fails() -> None:
    model = Model(Doubled(), [1.0], lr=0.1)

    def fails() -> float:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        model.optimizer.step(fails)
    assert model.optimizer.param_groups[0]["lr"] == 0.1
    assert model.gns.get_progress() == 0


def test_gradients_are_neither_used_nor_zeroed_while_they_are_accumulated() -> None:
    model = Model(LinearScale(), [1.0], lr=0.1)
    param = model.params[0]
    for synchronized in (False, False, True):
        model.optimizer.zero_grad()
        model.require_backward_grad_sync = synchronized
        param.grad = torch.ones(1) if param.grad is None else param.grad + 1
        model.gns.count_pass(synchronized)
        model.optimizer.step()
    assert param.grad is not None
    assert param.grad.item() == 3
    assert param.item() == pytest.approx(1 - 0.1 * 3 * 3)  # three passes, scale three
    model.optimizer.zero_grad()
    assert param.grad is None


def test_the_optimizer_is_left_alone_unless_it_is_to_be_patched() -> None:
    rule = LinearScale()
    model = Model(rule, [1.0], accum_scale=5.0, patch=False, lr=0.1)
    model.params[0].grad = torch.ones(1)
    model.gns.count_pass()
    model.optimizer.step()
    assert model.params[0].item() == pytest.approx(0.9)
    rule.step()
    assert model.params[0].item() == pytest.approx(0.4)


@pytest.mark.parametrize("scheduler_first", [False, True])
def test_learning_rate_schedulers_work_with_a_patched_optimizer(scheduler_first: bool) -> None:
    param = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([param], lr=1.0)
    make = torch.optim.lr_scheduler.ExponentialLR
    scheduler = make(optimizer, gamma=0.5) if scheduler_first else None
    adp = Mock(require_backward_grad_sync=True)
    adp.gns = GradientNoiseScale(adp, optimizer, num_replicas=1, accum_scale=2.0)
    LinearScale().initialize(adp, optimizer, patch_optimizer=True)
    scheduler = scheduler or make(optimizer, gamma=0.5)
    for _ in range(2):
        optimizer.zero_grad(set_to_none=False)
        param.grad = torch.ones(1)
        adp.gns.count_pass()
        optimizer.step()
        scheduler.step()
    assert param.item() == pytest.approx(-2.0 * (1 + 0.5))


def test_a_rule_without_a_model_says_so() -> None:
    with pytest.raises(ValueError, match="initialize"):
        LinearScale().step()


def _rosenbrock_grad(x: float, y: float) -> tuple[float, float]:
    return -2 * (1 - x) - 400 * x * (y - x * x), 200 * (y - x * x)


@pytest.mark.workers  # for as long as those take
@pytest.mark.parametrize("variant", ["noisy", "grouped", "accumulating", "adam"])
def test_the_minimum_of_a_narrow_valley_is_found(variant: str) -> None:
    random = np.random.RandomState(0)
    adam = variant == "adam"
    rule: ScalingRuleBase = AdamScale() if adam else AdaScale()
    optimizer = torch.optim.Adam if adam else torch.optim.SGD
    start = [[1.0], [1.5]] if variant == "grouped" else [[1.0, 1.5]]
    model = Model(rule, *start, optimizer=optimizer, lr=1e-2 if adam else 1e-3)
    passes = 2 if variant == "accumulating" else 1
    steps = 0
    x, y = 1.0, 1.5
    while abs(x - 1) > 0.01 or abs(y - 1) > 0.01:
        steps += 1
        assert steps < 100_000
        model.optimizer.zero_grad()
        gradient = np.array(_rosenbrock_grad(x, y))
        total = np.zeros(2)
        for number in range(passes):
            total += gradient + (random.normal(0, 0.05, 2) if variant == "noisy" else 0)
            grads = [
                torch.tensor(part, dtype=torch.float32)
                for part in np.split(total, len(model.params))
            ]
            if passes > 1:
                model.gns.observe_pass(model.params, grads)
            model.gns.count_pass(synchronized=number == passes - 1)
        for param, grad in zip(model.params, grads, strict=True):
            param.grad = grad / passes
        if passes > 1:
            model.gns.observe_reduced(model.params, grads, divisor=passes)
            model.gns.complete(samples=passes)
        else:
            model.gns.observe_consecutive(model.params, grads)
        model.optimizer.step()
        x, y = (float(value) for param in model.params for value in param.detach())
    assert steps > 100
