"""Gradient clipping for a loop that may accumulate gradients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from shoal.train.torch.loader_loop import current_dataloader
from shoal.train.worker.runtime import current_session


def clip_grad_norm_(
    parameters: torch.Tensor | Iterable[torch.Tensor], max_norm: float, **options: Any
) -> torch.Tensor | None:
    """As `torch.nn.utils.clip_grad_norm_`, once per step: before the last micro-batch of a step the
    gradients are not complete, and nothing is clipped."""
    helper = current_dataloader()
    if helper is not None and helper.is_accum_step():
        return None
    # A worker that is alone divides the sum over its micro-batches only when it steps.
    alone = helper is not None and current_session().size == 1
    passes = 1 / helper.worker_weight if helper is not None and alone else 1.0
    norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm * passes, **options)
    return norm / passes
