"""The state of a model in training: what joiners get, and what a dropped step is undone in."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from typing import IO, Any

import torch
from torch import nn

from shoal.train import checkpoint


class ModelState(checkpoint.State):
    """The model, its optimizer, scheduler, gradient scaler and noise."""

    def __init__(
        self, name: str, model: nn.Module, optimizer: Any, lr_scheduler: Any, scaler: Any, gns: Any
    ) -> None:
        super().__init__(name)
        self.model = model
        self.optimizer = optimizer
        self.lr_scheduler = lr_scheduler
        self.mp_scaler = scaler
        self.gns = gns

    def _parts(self) -> list[Any]:
        return [self.model, self.optimizer, self.lr_scheduler, self.mp_scaler, self.gns]

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


class StepEffects:
    """What a step changes beside parameters: undone if the step is dropped."""

    def __init__(self, state: ModelState) -> None:
        self._model = state.model
        self._optimizer = state.optimizer
        parts = (state.lr_scheduler, state.mp_scaler, state.gns)
        self._parts = [part for part in parts if part is not None]

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
