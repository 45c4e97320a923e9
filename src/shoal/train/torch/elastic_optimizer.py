"""An optimizer that steps once per step of all workers.

Scripts call `zero_grad` and `step` for each micro-batch. Here gradients are kept until a step is
complete, the learning rate follows the batch size, and gradients of a lost step are not applied.
"""

from __future__ import annotations

from typing import Any

import torch

from shoal.train.torch import metrics
from shoal.train.torch.gradient_noise_scale import GradientNoiseScale
from shoal.train.torch.loader_loop import AdaptiveDataLoaderHelper, current_dataloader
from shoal.train.torch.scaling_rules import ScalingRuleBase, method_of
from shoal.train.worker.generation import Generation, PeerLostError
from shoal.train.worker.runtime import current_session


class ElasticOptimizer:
    """Replaces `step` and `zero_grad` of an optimizer that `rule` was initialized for."""

    def __init__(
        self, name: str, optimizer: Any, gns: GradientNoiseScale, rule: ScalingRuleBase
    ) -> None:
        self._name = name
        self._optimizer = optimizer
        self._gns = gns
        self._rule = rule
        self._session = current_session()
        self._plain_step = optimizer.step
        optimizer.step = method_of(optimizer, optimizer.step, self.step)
        optimizer.zero_grad = method_of(optimizer, optimizer.zero_grad, self.zero_grad)

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        if self._gns.should_zero_grad:
            self._gns.reset_accumulation(*args, **kwargs)

    def step(self, *args: Any, **kwargs: Any) -> Any:
        helper = current_dataloader()
        if helper is None:
            return self._plain_step(*args, **kwargs)
        last = helper.is_optim_step()
        self._gns.count_pass(synchronized=last)
        if not last:
            if self._observes(helper) and self._session.size == 1:
                self._gns.observe_pass(*self._gradients())
            return None
        if self._session.may_step():
            self._average(helper)
            self._complete_observation(helper)
        if not self._session.may_step():
            self._gns.discard()
            return None
        result = self._rule.step(*args, **kwargs)
        self._session.stepped()
        metrics.update_progress(self._gns.get_progress())
        return result

    def observe_bucket(self, bucket: torch.distributed.GradBucket) -> None:
        """This worker's gradients, before they are reduced."""
        helper = current_dataloader()
        if helper is not None and self._observes(helper):
            self._gns.observe_local(
                bucket.parameters(),
                bucket.gradients(),
                bucket.buffer(),
                divisor=max(1, self._gns.accum_count + 1),
            )

    def _observes(self, helper: AdaptiveDataLoaderHelper) -> bool:
        """The same on all workers. Noise matters only where the batch size can change."""
        return helper.is_even and helper.scale_may_change and self._gns.wants_sample

    def _gradients(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        params = [
            param
            for group in self._optimizer.param_groups
            for param in group["params"]
            if param.grad is not None
        ]
        return params, [param.grad for param in params]

    def _average(self, helper: AdaptiveDataLoaderHelper) -> None:
        """A worker that is alone has summed up the gradients of its micro-batches."""
        if self._session.size == 1:
            if self._observes(helper) and self._gns.accum_count > 1:
                self._gns.observe_pass(*self._gradients())
            if helper.worker_weight != 1.0:
                for gradient in self._gradients()[1]:
                    gradient.mul_(helper.worker_weight)

    def _complete_observation(self, helper: AdaptiveDataLoaderHelper) -> None:
        if not (helper.is_even and helper.scale_may_change):
            self._gns.discard()
            return
        generation = self._session.generation
        assert generation is not None
        if generation.size == 1 and self._gns.accum_count == 1:
            self._gns.observe_consecutive(*self._gradients())
        elif self._gns.wants_sample:
            samples = generation.size if generation.size > 1 else self._gns.accum_count
            self._gns.observe_reduced(*self._gradients())
            self._gns.complete(samples, _summed(generation, self._gns.local_sqr))
        metrics.update_grad_params(self._name, self._gns.sqr_avg(), self._gns.var_avg())


def _summed(generation: Generation, value: torch.Tensor) -> torch.Tensor:
    """The sum over all workers. A failure is in the generation, and the step is dropped."""
    if generation.size > 1 and generation.error is None:
        try:
            generation.wait(generation.data.allreduce([value]))
        except PeerLostError:
            pass
        except RuntimeError as error:
            generation.fail(str(error))
    return value
