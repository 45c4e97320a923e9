"""Squared norms of gradients, and running averages of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

Array = Any  # numpy has no types here


def sqr_norm(tensor: torch.Tensor) -> torch.Tensor:
    """The squared norm, in double precision. A dot product is the fastest way on a CPU, but in half
    precision it overflows."""
    if tensor.is_sparse:
        tensor = tensor.coalesce().values()
    flat = tensor.detach().reshape(-1)
    if flat.dtype in (torch.float32, torch.float64):
        return torch.dot(flat, flat).double()
    return torch.linalg.vector_norm(flat, dtype=torch.float32).double().square()


def total(parts: Sequence[torch.Tensor], groups: int) -> torch.Tensor:
    return torch.stack(list(parts)).sum(dim=0) if parts else torch.zeros(groups).double()


def to_numpy(tensor: torch.Tensor) -> Array:
    return tensor.detach().cpu().double().numpy()


class RunningAverage:
    """An exponential average of vectors that is corrected for its beginning."""

    def __init__(self, start: Array) -> None:
        self.value = start
        self.restart()

    def restart(self) -> None:
        """Let the next value replace the average."""
        self._sum: Array = np.zeros_like(self.value)
        self._weight = 0.0

    def add(self, value: Array, keep: float) -> None:
        """Average `value` in; `keep` is the weight of what was there."""
        self._sum = keep * self._sum + (1 - keep) * value
        self._weight = keep * self._weight + (1 - keep)
        self.value = self._sum / self._weight

    def read_only(self) -> Array:
        view = self.value.view()
        view.flags.writeable = False
        return view

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value.tolist(), "sum": self._sum.tolist(), "weight": self._weight}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = np.array(state["value"], dtype=float)
        self._sum = np.array(state["sum"], dtype=float)
        self._weight = float(state["weight"])
