"""Data-parallel training whose group of workers may change between two optimizer steps.

The wrapper is stable; the DistributedDataParallel inside is rebuilt for each generation, so that
all workers have the same buckets. Gradients are reduced by a communication hook that never raises:
when a peer is lost it records that, the optimizer's step does nothing, and the loader serves the
samples of that step again.
"""

import inspect
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shoal.train import checkpoint
from shoal.train.torch import metrics
from shoal.train.torch.elastic_optimizer import ElasticOptimizer
from shoal.train.torch.gradient_noise_scale import AdamGradientNoiseScale, GradientNoiseScale
from shoal.train.torch.loader_loop import current_dataloader
from shoal.train.torch.model_state import ModelState, StepEffects
from shoal.train.torch.scaling_rules import AdamScale, AdaScale, ScalingRuleBase
from shoal.train.torch.unsupported_models import refuse_unsupported
from shoal.train.worker.generation import Generation, PeerLostError
from shoal.train.worker.runtime import current_session

_options = inspect.signature(DistributedDataParallel).parameters
_BUFFERS_OPTION = (
    "forward_sync_buffers" if "forward_sync_buffers" in _options else "broadcast_buffers"
)


class AdaptiveDataParallel(nn.Module):
    """Wraps a model and its optimizer for elastic training."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: Any = None,
        mp_scaler: Any = None,
        scaling_rule: Any = None,
        name: str = "adaptdl-dataparallel",
        **kwargs: Any,
    ) -> None:
        super().__init__()
        refuse_unsupported(model)
        self.module = model
        self.require_backward_grad_sync = True
        self._session = current_session()
        self._broadcast_buffers = bool(kwargs.pop(_BUFFERS_OPTION, True))
        self._ddp_kwargs = {**kwargs, _BUFFERS_OPTION: False, "init_sync": False}
        # Not a submodule: it wraps the same parameters again.
        self._inner: list[DistributedDataParallel] = []
        adam = isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW))
        noise_scale = AdamGradientNoiseScale if adam else GradientNoiseScale
        self.gns = noise_scale(self, optimizer, mp_scaler, 1, 1.0)
        default_rule = AdamScale() if adam else AdaScale()
        self.scaling_rule: ScalingRuleBase = scaling_rule or default_rule
        self.scaling_rule.initialize(self, optimizer)
        self._optimizer = ElasticOptimizer(name, optimizer, self.gns, self.scaling_rule)
        self._state = ModelState(name, model, optimizer, lr_scheduler, mp_scaler, self.gns)
        checkpoint.load_state(self._state)
        self._session.register_undoable(StepEffects(self._state))
        self._session.register_rebuilt(self)
        if self._session.generation is not None:
            self.rebuild(self._session.generation)

    # --- forward and backward ---

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        helper = current_dataloader()
        if not torch.is_grad_enabled():
            return self.module(*args, **kwargs)
        if helper is None:
            return _on_backward(self.module(*args, **kwargs), _refuse)
        if self.module.training:
            helper.train()
        if helper.first_micro_batch:
            self.gns.set_accum_scale(helper.micro_batch_scale)
        generation = self._session.generation
        assert generation is not None
        sync = self.require_backward_grad_sync and helper.is_optim_step()
        if sync and generation.size > 1 and self._broadcast_buffers and self.module.training:
            _sync_buffers(self.module, generation)
        if self._inner:
            inner = self._inner[0]
            inner.require_backward_grad_sync = sync
            output = inner(*args, **kwargs)
        else:
            output = self.module(*args, **kwargs)
        weight = helper.micro_batch_weight
        if weight == 1.0 and self.module.training:
            return output

        def weighted(gradient: torch.Tensor) -> torch.Tensor:
            helper.train()  # a model in eval mode is trained, too, such as one with frozen layers
            return gradient * weight

        return _on_backward(output, weighted)

    def rebuild(self, generation: Generation) -> None:
        """Build what belongs to a generation."""
        self._inner.clear()
        if generation.size > 1 and any(p.requires_grad for p in self.module.parameters()):
            inner = DistributedDataParallel(self.module, **self._ddp_kwargs)
            inner.register_comm_hook(_Reduction(generation, self._optimizer), _reduce)
            self._inner.append(inner)

    def zero_grad(self, set_to_none: bool = True) -> None:
        warnings.warn("zero_grad has no effect on an AdaptiveDataParallel", stacklevel=2)

    # --- what a script may ask ---

    @property
    def gain(self) -> float:
        """How many steps at the initial batch size one step is worth now."""
        return self.gns.gain(self.gns.accum_scale * max(self.gns.accum_count, 1))

    def to_tensorboard(self, writer: Any, global_step: int, tag_prefix: str = "") -> None:
        scale = self.gns.accum_scale * max(self.gns.accum_count, 1)
        factors = np.atleast_1d(self.scaling_rule.scale_lr(scale))
        values = {
            "Gradient_Norm_Sqr": self.gns.sqr_avg(),
            "Gradient_Variance": self.gns.var_avg(),
            "Gain": self.gns.gain(scale),
            "Learning_Rate_Factor": float(factors.mean()),
            "Accum_Scale": self.gns.accum_scale,
            "Accum_Count": self.gns.accum_count,
            "Progress": self.gns.get_progress(),
        }
        prefix = tag_prefix and f"{tag_prefix.rstrip('/')}/"
        for tag, value in values.items():
            writer.add_scalar(f"{prefix}{tag}", value, global_step)


@dataclass(frozen=True)
class _Reduction:
    """What the communication hook works with."""

    generation: Generation
    optimizer: ElasticOptimizer


# DistributedDataParallel inspects these annotations, so they cannot be strings.
def _reduce(
    reduction: _Reduction, bucket: torch.distributed.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """The average over all samples of the step, each worker's share weighted by its samples."""
    generation = reduction.generation
    current_session().gradients_are_reduced()
    buffer = bucket.buffer()
    result: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    if generation.error is not None:
        result.set_result(buffer)
        return result
    helper = current_dataloader()
    assert helper is not None
    reduction.optimizer.observe_bucket(bucket)
    buffer.mul_(helper.worker_weight)
    try:
        work = generation.data.allreduce([buffer])
    except RuntimeError as error:
        generation.fail(str(error))
        result.set_result(buffer)
        return result
    begun = time.perf_counter() if bucket.is_last() else None

    def done() -> None:
        if begun is not None:
            metrics.profile_sync_time(time.perf_counter() - begun)
        result.set_result(buffer)

    generation.when_done(work, done)
    return result


def _sync_buffers(module: nn.Module, generation: Generation) -> None:
    """Batch statistics follow rank 0, as in DistributedDataParallel."""
    for buffer in module.buffers():
        if generation.error is not None:
            return
        options = torch.distributed.BroadcastOptions()
        options.rootRank = 0
        try:
            generation.wait(generation.data.broadcast([buffer], options))
        except PeerLostError:
            return
        except RuntimeError as error:
            generation.fail(str(error))


def _refuse(gradient: torch.Tensor) -> torch.Tensor:
    raise RuntimeError(
        "backward() of an AdaptiveDataParallel outside of a loop over an AdaptiveDataLoader: "
        "gradients are combined by its steps. Use model.module for a pass that is not training."
    )


def _on_backward(output: Any, hook: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same output; `hook` replaces the gradients that flow back through it."""
    if isinstance(output, torch.Tensor):
        if output.requires_grad:
            output = output.clone() if output.is_leaf else output
            output.register_hook(hook)
        return output
    if isinstance(output, dict):
        return type(output)({key: _on_backward(value, hook) for key, value in output.items()})
    if isinstance(output, (list, tuple)):
        return type(output)(_on_backward(value, hook) for value in output)
    return output
