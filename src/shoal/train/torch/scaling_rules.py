"""Rules for the learning rate at a batch size other than the initial one.

A rule is a factor per scale, where the scale is the batch size relative to the initial one.
Subclass `ScalingRuleBase` and override `scale_lr` for a new rule.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from shoal.train.torch.metrics import init_batch_size

Factor = Any  # a number, or an array with one number per parameter group


class ScalingRuleBase:
    """Runs the optimizer with a scaled learning rate.

    `adp` is the data-parallel model; its `gns` knows the scale of the step and the noise of the
    gradients.
    """

    def __init__(self) -> None:
        self.adp: Any = None
        self._optimizer: Any = None
        self._orig_optimizer_step: Callable[..., Any] | None = None

    def scale_lr(self, scale: float) -> Factor:
        """The factor for the learning rate at `scale` times the initial batch size: a number, or
        one number per parameter group."""
        raise NotImplementedError

    def initialize(self, adp: Any, optimizer: Any, patch_optimizer: bool = False) -> None:
        """Use this rule for `adp` and its optimizer. With `patch_optimizer`, the `step` and
        `zero_grad` of the optimizer are those of this rule from now on."""
        self.adp = adp
        self._optimizer = optimizer
        self._orig_optimizer_step = optimizer.step
        if patch_optimizer:
            optimizer.step = method_of(optimizer, optimizer.step, self.step)
            optimizer.zero_grad = method_of(optimizer, optimizer.zero_grad, self.zero_grad)

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """One step of the optimizer with a scaled learning rate; nothing while gradients are being
        accumulated. Takes the arguments of the optimizer's `step`."""
        if self.adp is None or self._orig_optimizer_step is None:
            raise ValueError("call initialize() with an AdaptiveDataParallel before step()")
        if not self.adp.require_backward_grad_sync:
            return None
        gns = self.adp.gns
        scale = gns.accum_scale * max(gns.accum_count, 1)
        groups = self._optimizer.param_groups
        factors = np.broadcast_to(self.scale_lr(scale), len(groups))
        unscaled = [group["lr"] for group in groups]
        gns.prepare_step(scale)
        try:
            for group, factor in zip(groups, factors, strict=True):
                group["lr"] = group["lr"] * float(factor)
            result = self._orig_optimizer_step(*args, **kwargs)
        finally:
            for group, learning_rate in zip(groups, unscaled, strict=True):
                group["lr"] = learning_rate
        gns.set_progress(gns.get_progress() + gns.gain(scale))
        return result

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Zero the gradients, unless they are being accumulated. Takes the arguments of the
        optimizer's `zero_grad`."""
        if self.adp.gns.should_zero_grad:
            self.adp.gns.reset_accumulation(*args, **kwargs)


class AdaScale(ScalingRuleBase):
    """Scales by the gain, per parameter group (AdaScale SGD, ICML 2020). For SGD."""

    def scale_lr(self, scale: float) -> Factor:
        var = np.maximum(self.adp.gns.raw_var_avg, 1e-6)
        sqr = np.maximum(self.adp.gns.raw_sqr_avg, 0.0)
        return (var + sqr) / (var / scale + sqr)


class AdamScale(AdaScale):
    """Scales by a power of the gain. For Adam, AdamW and RMSProp."""

    def scale_lr(self, scale: float, power: float = 0.5) -> Factor:
        return np.power(super().scale_lr(scale), power)


class LinearScale(ScalingRuleBase):
    """Scales in proportion to the batch size."""

    def scale_lr(self, scale: float) -> Factor:
        return scale


class SqrtScale(ScalingRuleBase):
    """Scales with the square root of the batch size."""

    def scale_lr(self, scale: float) -> Factor:
        return np.sqrt(scale)


class LEGWScale(ScalingRuleBase):
    """Scales with the square root of the batch size, with a linear warm-up whose length in epochs
    is in proportion to the batch size (arXiv:1901.08256)."""

    def __init__(self, base_warmup_epochs: float, data_size: int) -> None:
        super().__init__()
        self._base_warmup_epochs = base_warmup_epochs
        self._data_size = data_size

    def scale_lr(self, scale: float) -> Factor:
        epochs = self._base_warmup_epochs * scale
        warmup_steps = epochs * self._data_size / init_batch_size()
        progress = self.adp.gns.get_progress()
        return np.sqrt(scale) * (min(progress / warmup_steps, 1.0) if warmup_steps > 0 else 1.0)


def method_of(optimizer: Any, original: Any, replacement: Callable[..., Any]) -> Any:
    """`replacement` as a method of `optimizer`: learning-rate schedulers need its `__func__`."""

    @functools.wraps(original)
    def call(_: Any, *args: Any, **kwargs: Any) -> Any:
        return replacement(*args, **kwargs)

    return types.MethodType(call, optimizer)
