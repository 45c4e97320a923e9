"""Refuses models that elastic data parallelism cannot wrap: every worker must hold all of a model,
or a worker that is lost takes a part of it along."""

from __future__ import annotations

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

_RESTART = (
    "Keep the script as it runs under torchrun, without shoal.train.prepare or "
    "AdaptiveDataParallel: shoal train --rescale-mode restart starts all workers again, with the "
    "script's own checkpoint, when their number changes."
)


def refuse_unsupported(model: object) -> None:
    """Raise TypeError for a model that is sharded over workers, or wrapped already."""
    if isinstance(model, (DistributedDataParallel, DataParallel)):
        raise TypeError(
            f"the model is wrapped by {type(model).__name__} already; pass the model itself "
            f"(model.module): its gradients are reduced by the elastic wrapper"
        )
    if what := _sharded_by(model):
        raise TypeError(
            f"{what} splits a model over the workers, so they cannot come and go while it trains. "
            f"{_RESTART}"
        )


def _sharded_by(model: object) -> str:
    package = type(model).__module__
    if package.startswith("deepspeed"):
        return "DeepSpeed"
    if package.startswith("torch.distributed.pipelining"):
        return "pipeline parallelism"
    if not isinstance(model, nn.Module):
        return ""
    names = {kind.__name__ for module in model.modules() for kind in type(module).__mro__}
    if names & {"FullyShardedDataParallel", "FSDPModule"}:
        return "FSDP"
    if any(type(parameter.data).__name__ == "DTensor" for parameter in model.parameters()):
        return "tensor parallelism"
    return ""
