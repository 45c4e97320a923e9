"""What a running job measures."""

from shoal.train.torch.metrics import (
    _fit_perf_params,
    _metrics_state,
    get_goodput_fn,
    get_progress,
    profile_step_commit,
    profile_step_start,
    profile_sync_time,
    set_batch_size,
    update_grad_params,
    update_progress,
)

__all__ = [
    "_fit_perf_params",
    "_metrics_state",
    "get_goodput_fn",
    "get_progress",
    "profile_step_commit",
    "profile_step_start",
    "profile_sync_time",
    "set_batch_size",
    "update_grad_params",
    "update_progress",
]
