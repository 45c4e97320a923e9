"""How many samples a step has, where the script allows it to change."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shoal.train.torch import metrics
from shoal.train.torch.sampler import StepPlan
from shoal.train.worker.session import Batch

_WORTHWHILE_GAIN = 1.05


def check_limits(
    batch_size: int, max_batch_size: int, local_bsz_bounds: tuple[int, int] | None
) -> None:
    if not isinstance(max_batch_size, int) or max_batch_size < batch_size:
        raise ValueError(f"max_batch_size must be an integer of at least {batch_size}")
    low, high = local_bsz_bounds or (None, None)
    if (low is not None and low > batch_size) or (high is not None and high < batch_size):
        raise ValueError(f"local_bsz_bounds must include the batch size {batch_size}")


@dataclass(frozen=True)
class BatchSizeLimits:
    """What `autoscale_batch_size` was called with. Without a maximum the batch size is fixed."""

    initial: int
    maximum: int | None
    local_bounds: tuple[int, int] | None
    accumulation: bool

    def sizes(self, workers: int, chosen: Batch | None) -> tuple[int, int]:
        """Samples per worker and micro-batch, and micro-batches per step. What was chosen for
        another number of workers gives the total."""
        if self.maximum is None or chosen is None:
            local = math.ceil(self.initial / workers)
            highest = self.local_bounds[1] if self.local_bounds and self.accumulation else None
            passes = math.ceil(local / highest) if highest else 1
            return math.ceil(local / passes), passes
        chosen_workers, local, micro_batches = chosen
        if chosen_workers != workers:
            total = min(chosen_workers * local * micro_batches, self.maximum)
            local = math.ceil(total / workers / micro_batches)
            low, high = self.local_bounds or (None, None)
            local = max(local, low or 1)
            local = min(local, high) if high is not None else local
        return local, micro_batches

    def better(self, plan: StepPlan, nodes: int) -> Batch | None:
        """A batch size with a goodput that is worth the change, if one is known."""
        goodput = metrics.get_goodput_fn()
        if goodput is None:
            return None
        best, local, accumulation = goodput.optimize(
            nodes,
            plan.size,
            max_batch_size=self.maximum,
            atomic_bsz_range=self.local_bounds,
            accumulation=self.accumulation,
        )
        current = goodput(nodes, plan.size, plan.local_batch, plan.micro_batches - 1)
        if best <= _WORTHWHILE_GAIN * current:
            return None
        return plan.size, int(local), int(accumulation) + 1
