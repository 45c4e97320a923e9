"""Trains until it is stopped, and writes the time of each step: `timed.py MODE FILE ...`.

Modes: `elastic` uses the training library, `noise` lets it measure the gradient noise as well, and
`ddp` is the same loop with plain DistributedDataParallel.
Arguments: hidden units (the size of the model), samples per step, steps (0: until stopped).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

INPUTS = 64


class Samples(torch.utils.data.Dataset):  # type: ignore[misc]
    def __init__(self) -> None:
        self._x = torch.randn(4096, INPUTS)

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, index: int) -> Any:
        return self._x[index]


def main() -> None:
    mode, path, hidden, batch, steps = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(INPUTS, hidden), nn.ReLU(), nn.Linear(hidden, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    if mode == "ddp":
        loop = _plain(model, batch)
    else:
        loop = _elastic(model, optimizer, batch, measures_noise=mode == "noise")
    with open(f"{path}-{os.environ.get('SHOAL_TRAIN_WORKER', os.getpid())}", "a") as times:  # noqa: PTH123
        for step, (net, x) in enumerate(loop):
            optimizer.zero_grad()
            (net(x) ** 2).mean().backward()
            optimizer.step()
            times.write(f"{time.monotonic()}\n")
            times.flush()
            if steps and step >= steps:
                break


def _elastic(
    model: nn.Module, optimizer: Any, batch: int, *, measures_noise: bool
) -> Iterator[Any]:
    import shoal.train.torch as elastic

    elastic.init_process_group("gloo")
    loader = elastic.AdaptiveDataLoader(Samples(), batch_size=batch, shuffle=True)
    if measures_noise:
        loader.autoscale_batch_size(batch)  # which could grow, but for its limit
    net = elastic.AdaptiveDataParallel(model, optimizer)
    for _ in elastic.remaining_epochs_until(1_000_000):
        for x in loader:
            yield net, x


def _plain(model: nn.Module, batch: int) -> Iterator[Any]:
    dist.init_process_group("gloo")
    samples = Samples()
    sampler: Any = torch.utils.data.distributed.DistributedSampler(samples)
    local = batch // dist.get_world_size()
    loader = torch.utils.data.DataLoader(samples, batch_size=local, sampler=sampler)
    net = DistributedDataParallel(model)
    for epoch in range(1_000_000):
        sampler.set_epoch(epoch)
        for x in loader:
            yield net, x


if __name__ == "__main__":
    main()
