"""Elastic training. In a script: `import shoal.train as st`.

The names below are imported when they are first used, since the job's own processes, which need no
torch, are in this package, too.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.train.saved_directories import latest_checkpoint, save
    from shoal.train.script_api import epochs, init, notice, on_rescale, rank, report, workers
    from shoal.train.torch.accumulator import Accumulator
    from shoal.train.torch.clipping import clip_grad_norm_
    from shoal.train.torch.prepare import prepare
    from shoal.train.torch.resumable_sampler import ElasticSampler

__all__ = [
    "Accumulator",
    "ElasticSampler",
    "clip_grad_norm_",
    "epochs",
    "init",
    "latest_checkpoint",
    "notice",
    "on_rescale",
    "prepare",
    "rank",
    "report",
    "save",
    "workers",
]

_MODULES = {
    "Accumulator": "torch.accumulator",
    "ElasticSampler": "torch.resumable_sampler",
    "clip_grad_norm_": "torch.clipping",
    "latest_checkpoint": "saved_directories",
    "prepare": "torch.prepare",
    "save": "saved_directories",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_MODULES.get(name, 'script_api')}")
    return getattr(module, name)
