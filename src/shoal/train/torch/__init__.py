"""The training library: AdaptDL's names and meaning, on workers that may come and go."""

from __future__ import annotations

import re

from shoal.train.torch import process_group
from shoal.train.torch.accumulator import Accumulator
from shoal.train.torch.data import (
    AdaptiveDataLoader,
    AdaptiveDataLoaderHelper,
    AdaptiveDataLoaderMixin,
    current_dataloader,
)
from shoal.train.torch.epoch import current_epoch, finished_epochs, remaining_epochs_until
from shoal.train.torch.parallel import AdaptiveDataParallel
from shoal.train.torch.sampler import ElasticSampler
from shoal.train.worker.runtime import current_session

__all__ = [
    "Accumulator",
    "AdaptiveDataLoader",
    "AdaptiveDataLoaderHelper",
    "AdaptiveDataLoaderMixin",
    "AdaptiveDataParallel",
    "ElasticSampler",
    "current_dataloader",
    "current_epoch",
    "finished_epochs",
    "init_process_group",
    "remaining_epochs_until",
    "version_check",
]


def init_process_group(
    backend: str,
    init_method: str | None = None,
    world_size: int | None = None,
    rank: int | None = None,
) -> None:
    """Join the other workers of this job, and make their group the default group of
    `torch.distributed`. By itself, a script reads who they are from the environment."""
    session = current_session()
    session.rendezvous.use_backend(backend)
    session.rendezvous.set_environment(init_method, world_size, rank)
    process_group.init_process_group(session)


def version_check(version: str) -> bool:
    """Whether `version` is that of a release, by semantic versioning."""
    return version != "0.0.0" and re.fullmatch(_SEMANTIC_VERSION, version) is not None


_SEMANTIC_VERSION = (
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?"
)
