"""`prepare`: makes a script's model, optimizer, scheduler and loader elastic."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.data import DataLoader, IterableDataset

from shoal.train.torch.parallel import AdaptiveDataParallel
from shoal.train.torch.prepared_loader import PreparedDataLoader
from shoal.train.torch.stream_loader import StreamLoader
from shoal.train.torch.unsupported_models import refuse_unsupported

_numbers = itertools.count()


def prepare(*objects: Any, scaling_rule: Any = None, **ddp_options: Any) -> Any:
    """Return the same objects in the same order, ready for workers that come and go.

    Pass models, their optimizers, schedulers, gradient scalers and DataLoaders, all at once or in
    several calls; None stays None. A model and the optimizer that holds its parameters belong
    together, and both must be in one call. The batch size of a loader is that of all workers
    together. `ddp_options` are those of DistributedDataParallel, such as find_unused_parameters.
    A model without an optimizer is returned as it is.
    """
    parts = _Parts(objects)
    results = [parts.prepared(each, scaling_rule, ddp_options) for each in objects]
    return results[0] if len(results) == 1 else tuple(results)


class _Parts:
    """The objects of one call, and which of them belong together."""

    def __init__(self, objects: tuple[Any, ...]) -> None:
        for each in objects:
            refuse_unsupported(each)
        self.optimizers = [o for o in objects if isinstance(o, torch.optim.Optimizer)]
        self.schedulers = [o for o in objects if _is_scheduler(o)]
        self.scalers = [o for o in objects if isinstance(o, torch.amp.GradScaler)]
        self._models = [o for o in objects if isinstance(o, nn.Module)]
        for optimizer in self.optimizers:
            if not any(self._optimizer_of(model) is optimizer for model in self._models):
                raise ValueError(
                    "an optimizer without its model: pass the model whose parameters it updates "
                    "to the same call of prepare"
                )

    def prepared(self, each: Any, scaling_rule: Any, ddp_options: dict[str, Any]) -> Any:
        if isinstance(each, nn.Module):
            return self._prepared_model(each, scaling_rule, ddp_options)
        if isinstance(each, DataLoader):
            is_stream = isinstance(each.dataset, IterableDataset)
            return StreamLoader(each) if is_stream else PreparedDataLoader(each)
        known = (torch.optim.Optimizer, torch.amp.GradScaler, type(None))
        if isinstance(each, known) or _is_scheduler(each):
            return each  # part of its model from here on
        raise TypeError(
            f"prepare takes models, optimizers, schedulers, gradient scalers and DataLoaders, "
            f"not {type(each).__name__}"
        )

    def _prepared_model(
        self, model: nn.Module, scaling_rule: Any, ddp_options: dict[str, Any]
    ) -> nn.Module:
        optimizer = self._optimizer_of(model)
        if optimizer is None:
            return model
        schedulers = [s for s in self.schedulers if s.optimizer is optimizer]
        if len(schedulers) > 1:
            raise ValueError("several schedulers for one optimizer: chain them, and pass the chain")
        return AdaptiveDataParallel(
            model,
            optimizer,
            lr_scheduler=schedulers[0] if schedulers else None,
            mp_scaler=self.scalers[0] if self.scalers else None,
            scaling_rule=scaling_rule,
            name=f"shoal-model-{next(_numbers)}",
            **ddp_options,
        )

    def _optimizer_of(self, model: nn.Module) -> torch.optim.Optimizer | None:
        own = {id(parameter) for parameter in model.parameters()}
        updating = [
            optimizer
            for optimizer in self.optimizers
            if any(id(p) in own for group in optimizer.param_groups for p in group["params"])
        ]
        if len(updating) > 1:
            raise ValueError(
                "several optimizers for one model: split the model, or use one optimizer with "
                "parameter groups"
            )
        return updating[0] if updating else None


def _is_scheduler(value: Any) -> bool:
    return isinstance(value, (LRScheduler, ReduceLROnPlateau))
