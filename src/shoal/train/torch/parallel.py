"""Data-parallel training whose group of workers may change between two optimizer steps.

The wrapper is stable; the DistributedDataParallel inside is rebuilt for each generation, so that
all workers have the same buckets. Gradients are reduced by a communication hook that never raises:
when a peer is lost it records that, the optimizer's step does nothing, and the loader serves the
samples of that step again.
"""

import inspect
import io
import random
import warnings
from collections.abc import Callable
from typing import IO, Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shoal.train import checkpoint
from shoal.train.torch.data import AdaptiveDataLoaderHelper, current_dataloader
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
        self.module = model
        self.require_backward_grad_sync = True
        self._session = current_session()
        self._optimizer = optimizer
        self._lr_scheduler = lr_scheduler
        self._mp_scaler = mp_scaler
        self._broadcast_buffers = bool(kwargs.pop(_BUFFERS_OPTION, True))
        self._ddp_kwargs = {**kwargs, _BUFFERS_OPTION: False, "init_sync": False}
        # Not a submodule: it wraps the same parameters again.
        self._inner: list[DistributedDataParallel] = []
        self._state = _ModelState(name, model, optimizer, lr_scheduler, mp_scaler)
        _patch_optimizer(self, optimizer)
        checkpoint.load_state(self._state)
        self._session.register_undoable(_StepEffects(model, optimizer, lr_scheduler, mp_scaler))
        self._session.register_rebuilt(self)
        if self._session.generation is not None:
            self.rebuild(self._session.generation)

    # --- forward and backward ---

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        helper = current_dataloader()
        if not (torch.is_grad_enabled() and self.module.training and helper is not None):
            return self.module(*args, **kwargs)
        helper.train()
        generation = self._session.generation
        assert generation is not None
        sync = self.require_backward_grad_sync and helper.is_optim_step()
        if sync and generation.size > 1 and self._broadcast_buffers:
            _sync_buffers(self.module, generation)
        if self._inner:
            inner = self._inner[0]
            inner.require_backward_grad_sync = sync
            output = inner(*args, **kwargs)
        else:
            output = self.module(*args, **kwargs)
        weight = helper.micro_batch_weight
        return output if weight == 1.0 else _scale_gradients(output, weight)

    def rebuild(self, generation: Generation) -> None:
        """Build what belongs to a generation."""
        self._inner.clear()
        if generation.size > 1 and any(p.requires_grad for p in self.module.parameters()):
            inner = DistributedDataParallel(self.module, **self._ddp_kwargs)
            inner.register_comm_hook(generation, _reduce)
            self._inner.append(inner)

    def zero_grad(self, set_to_none: bool = True) -> None:
        warnings.warn("zero_grad has no effect on an AdaptiveDataParallel", stacklevel=2)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return super().state_dict(*args, **kwargs)


# DistributedDataParallel inspects these annotations, so they cannot be strings.
def _reduce(
    generation: Generation, bucket: torch.distributed.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """The average over all samples of the step, each worker's share weighted by its samples."""
    session = current_session()
    session.gradients_are_reduced()
    buffer = bucket.buffer()
    result: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    if generation.error is not None:
        result.set_result(buffer)
        return result
    helper = current_dataloader()
    assert helper is not None
    buffer.mul_(helper.worker_weight)
    try:
        work = generation.data.allreduce([buffer])
    except RuntimeError as error:
        generation.fail(str(error))
        result.set_result(buffer)
        return result
    generation.when_done(work, lambda: result.set_result(buffer))
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


def _scale_gradients(output: Any, weight: float) -> Any:
    """The same output; gradients that flow back through it are multiplied by `weight`."""
    if isinstance(output, torch.Tensor):
        if output.requires_grad:
            output = output.clone() if output.is_leaf else output
            output.register_hook(lambda gradient: gradient * weight)
        return output
    if isinstance(output, dict):
        return type(output)({key: _scale_gradients(value, weight) for key, value in output.items()})
    if isinstance(output, (list, tuple)):
        return type(output)(_scale_gradients(value, weight) for value in output)
    return output


# --- the optimizer ---


def _patch_optimizer(model: AdaptiveDataParallel, optimizer: torch.optim.Optimizer) -> None:
    """Steps and zeroing happen once per step of all workers, not once per micro-batch, and not with
    gradients of a step that is lost."""
    session = current_session()
    step, zero_grad = optimizer.step, optimizer.zero_grad

    def elastic_step(*args: Any, **kwargs: Any) -> Any:
        helper = current_dataloader()
        if helper is None:
            return step(*args, **kwargs)
        if helper.is_accum_step() or not session.may_step():
            return None
        _finish_local_gradients(model, helper)
        result = step(*args, **kwargs)
        session.stepped()
        return result

    def elastic_zero_grad(*args: Any, **kwargs: Any) -> None:
        helper = current_dataloader()
        if helper is None or helper.first_micro_batch or helper.is_optim_step():
            zero_grad(*args, **kwargs)

    # A scheduler looks at the attributes of the function that it has wrapped.
    for patched, original in ((elastic_step, step), (elastic_zero_grad, zero_grad)):
        patched.__dict__.update(getattr(original, "__dict__", {}))
    optimizer.step = elastic_step
    optimizer.zero_grad = elastic_zero_grad


def _finish_local_gradients(model: AdaptiveDataParallel, helper: AdaptiveDataLoaderHelper) -> None:
    """A worker that is alone has summed up the gradients of its micro-batches."""
    if not model._inner and helper.worker_weight != 1.0:
        for parameter in model.module.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(helper.worker_weight)


# --- state ---


class _ModelState(checkpoint.State):
    """The model, its optimizer, scheduler and gradient scaler."""

    def __init__(
        self, name: str, model: nn.Module, optimizer: Any, lr_scheduler: Any, mp_scaler: Any
    ) -> None:
        super().__init__(name)
        self.model = model
        self.optimizer = optimizer
        self.lr_scheduler = lr_scheduler
        self.mp_scaler = mp_scaler

    def _parts(self) -> list[Any]:
        return [self.model, self.optimizer, self.lr_scheduler, self.mp_scaler]

    def snapshot(self) -> Any:
        return [part.state_dict() if part is not None else None for part in self._parts()]

    def restore(self, snapshot: Any) -> None:
        for part, state in zip(self._parts(), snapshot, strict=True):
            if part is not None and state is not None:
                part.load_state_dict(state)

    def save(self, fileobj: IO[bytes]) -> None:
        torch.save(self.snapshot(), fileobj)

    def load(self, fileobj: IO[bytes]) -> None:
        # Our own file, checked against its checksum. Schedulers may hold any object.
        self.restore(torch.load(fileobj, map_location="cpu", weights_only=False))

    def freeze(self) -> Callable[[], bytes]:
        copied = _copied(self.snapshot())

        def serialize() -> bytes:
            buffer = io.BytesIO()
            torch.save(copied, buffer)
            return buffer.getvalue()

        return serialize


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(_copied(item) for item in value)
    return value


class _StepEffects:
    """What a step changes beside parameters: undone if the step is dropped."""

    def __init__(self, model: nn.Module, optimizer: Any, lr_scheduler: Any, mp_scaler: Any) -> None:
        self._model = model
        self._optimizer = optimizer
        self._parts = [part for part in (lr_scheduler, mp_scaler) if part is not None]

    def mark(self) -> Any:
        return (
            [buffer.clone() for buffer in self._model.buffers()],
            # A scheduler writes the learning rate here.
            [_settings(group) for group in self._optimizer.param_groups],
            [_copied(part.state_dict()) for part in self._parts],
            torch.get_rng_state(),
            random.getstate(),
        )

    def undo(self, mark: Any) -> None:
        buffers, settings, states, torch_random, python_random = mark
        for buffer, before in zip(self._model.buffers(), buffers, strict=True):
            buffer.copy_(before)
        for group, values in zip(self._optimizer.param_groups, settings, strict=True):
            group.update(values)
        for part, state in zip(self._parts, states, strict=True):
            part.load_state_dict(state)
        torch.set_rng_state(torch_random)
        random.setstate(python_random)
        for parameter in self._model.parameters():
            parameter.grad = None


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    return {key: _copied(value) for key, value in group.items() if key != "params"}
