"""Trains a small model in float64, and counts how often each sample was used in each pass.

Ends after the epoch in which the file `enough` appears. Rank 0 prints a JSON line per epoch.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

SAMPLES = 240
BATCH = 12
PAUSE = float(os.environ.get("PAUSE", "0.01"))
MICRO_BATCHES = int(os.environ.get("MICRO_BATCHES", "1"))
LOADER_PROCESSES = int(os.environ.get("LOADER_PROCESSES", "0"))


class Samples(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        x = torch.tensor([index / SAMPLES, (index % 7) / 7], dtype=torch.float64)
        return index, x, 3 * x[:1] + 4


def model_optimizer_scheduler() -> tuple[nn.Module, Any, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.99)


class FixedMicroBatches:
    """Batch sizes of a loader that always accumulates gradients."""

    @staticmethod
    def sizes(workers: int, chosen: Any) -> tuple[int, int]:
        return BATCH // workers // MICRO_BATCHES, MICRO_BATCHES


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return ((model(x) - y) ** 2).mean()


def main() -> None:
    import shoal.train.torch as elastic
    from shoal.train import env

    elastic.init_process_group("gloo")
    dist.barrier()  # as scripts do before they load data; a joiner must not wait here
    model, optimizer, scheduler = model_optimizer_scheduler()
    options: dict[str, Any] = {"num_workers": LOADER_PROCESSES}
    loader = elastic.AdaptiveDataLoader(Samples(), batch_size=BATCH, shuffle=True, **options)
    validation = elastic.AdaptiveDataLoader(Samples(), batch_size=4 * BATCH, **options)
    if MICRO_BATCHES > 1:
        helper: Any = loader._elastic
        helper._limits = lambda: FixedMicroBatches
    net = elastic.AdaptiveDataParallel(model, optimizer, scheduler)
    for epoch in elastic.remaining_epochs_until(10_000):
        trained, validated = elastic.Accumulator(), elastic.Accumulator()
        net.train()
        for index, x, y in loader:
            optimizer.zero_grad()
            loss_of(net, x, y).backward()
            optimizer.step()
            if loader._elastic.is_optim_step():
                scheduler.step()
            trained.update({int(i): 1 for i in index})
            time.sleep(PAUSE)
        net.eval()
        for index, x, y in validation:
            with torch.no_grad():
                validated["loss"] += loss_of(net, x, y).item() * len(index)
            validated.update({int(i): 1 for i in index})
            time.sleep(PAUSE)
        if env.replica_rank() == 0:
            validated["enough"] += Path("enough").exists()
        with trained.synchronized(), validated.synchronized():
            if env.replica_rank() == 0:
                report = {
                    "epoch": epoch,
                    "workers": env.num_replicas(),
                    "trained": [trained.get(i, 0) for i in range(SAMPLES)],
                    "validated": [validated.get(i, 0) for i in range(SAMPLES)],
                    "loss": validated["loss"] / SAMPLES,
                }
                print(json.dumps(report), flush=True)
            enough = validated["enough"] > 0
        if enough:
            break


if __name__ == "__main__":
    main()
