"""What every system trains in the benchmark `train_trace`, and the log that its workers write.

A step has the same samples on any number of workers, and its cost is made by sleeping: a worker
trains RATE samples per second, so that N workers train N times as many on any machine.

Each worker writes two JSON lines per step to a file of its own: `begin` with its samples, before
it sends gradients to others, and `end` with the loss over all samples, after the optimizer's step.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

SAMPLES = 960
BATCH = 48  # of all workers together; 1, 2, 3 and 4 workers have equal parts
RATE = 48.0
STEPS_PER_PASS = SAMPLES // BATCH


class Samples(torch.utils.data.Dataset):  # type: ignore[misc]
    def __init__(self) -> None:
        index = torch.arange(SAMPLES, dtype=torch.float64)
        self.x = torch.stack([index / SAMPLES, (index % 7) / 7], dim=1)
        self.y = 3 * self.x[:, :1] + 4 * torch.sin(5 * self.x[:, 1:])

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return index, self.x[index], self.y[index]

    def __getitems__(self, indices: list[int]) -> Any:
        """A whole batch, for a DataLoader whose `collate_fn` is `as_it_is`."""
        return torch.tensor(indices), self.x[indices], self.y[indices]


def as_it_is(batch: Any) -> Any:
    return batch


def model_and_optimizer() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1)).double()
    return model, torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)


def loss_of(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return ((model(x) - y) ** 2).mean()


def batch_of(step: int) -> list[int]:
    """The samples of a step, in the order in which Shoal's loader shuffles them, too."""
    number, position = divmod(step, STEPS_PER_PASS)
    generator = torch.Generator()
    generator.manual_seed(number)
    order: list[int] = torch.randperm(SAMPLES, generator=generator).tolist()
    return order[position * BATCH : (position + 1) * BATCH]


def part_of(step: int, rank: int, workers: int) -> list[int]:
    """The samples of one worker in a step."""
    size = BATCH // workers
    return batch_of(step)[rank * size : (rank + 1) * size]


def compute(samples: int) -> None:
    """Take as long as a worker needs for so many samples."""
    time.sleep(samples / RATE)


def undisturbed_losses() -> Iterator[float]:
    """The loss after each step of one process that is never disturbed, without the sleeping."""
    model, optimizer = model_and_optimizer()
    data = Samples()
    for step in itertools.count():
        train_step(model, optimizer, data, batch_of(step))
        yield full_loss(model, data)


def train_step(model: Any, optimizer: Any, data: Samples, indices: list[int]) -> None:
    optimizer.zero_grad()
    loss_of(model, data.x[indices], data.y[indices]).backward()
    optimizer.step()


def full_loss(model: Any, data: Samples) -> float:
    with torch.no_grad():
        return float(loss_of(model, data.x, data.y))


class StepLog:
    """The log of one worker process."""

    def __init__(self, directory: str) -> None:
        self._file = (Path(directory) / f"steps-{os.getpid()}-{time.time_ns()}").open("a")

    def begin(self, step: int, rank: int, workers: int, samples: list[int]) -> None:
        self._write(kind="begin", step=step, rank=rank, workers=workers, samples=samples)

    def end(self, step: int, rank: int, loss: float) -> None:
        self._write(kind="end", step=step, rank=rank, loss=loss)

    def _write(self, **values: Any) -> None:
        self._file.write(json.dumps({"at": time.monotonic(), **values}) + "\n")
        self._file.flush()
