"""What the script `audited` has printed must be what an undisturbed training prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from shoal.train.torch.sampler import pass_order
from tests.train.scripts import audited


def epochs(directory: Path) -> list[dict[str, Any]]:
    """What the ranks 0 have printed, in the order of epochs."""
    lines = [
        json.loads(line)
        for log in directory.glob("*.log")
        for line in log.read_text().splitlines()
        if line.startswith("{")
    ]
    return sorted(lines, key=lambda line: int(line["epoch"]))


def _undisturbed_loss(epochs: int) -> float:
    """The same training by plain PyTorch, with the same order of samples."""
    model, optimizer, scheduler = audited.model_optimizer_scheduler()
    samples = audited.Samples()
    for epoch in range(epochs):
        order = pass_order(audited.SAMPLES, True, epoch)
        for start in range(0, audited.SAMPLES, audited.BATCH):
            batch = [samples[i] for i in order[start : start + audited.BATCH]]
            x, y = torch.stack([s[1] for s in batch]), torch.stack([s[2] for s in batch])
            optimizer.zero_grad()
            audited.loss_of(model, x, y).backward()
            optimizer.step()
            scheduler.step()
    every = [samples[i] for i in range(audited.SAMPLES)]
    x, y = torch.stack([s[1] for s in every]), torch.stack([s[2] for s in every])
    with torch.no_grad():
        return audited.loss_of(model, x, y).item()


def assert_as_if_undisturbed(directory: Path, *, allow_lost_counts: int = 0) -> None:
    """A worker that is killed takes along what it has counted in its last step, but no sample of
    the training and nothing of the validation."""
    lines = epochs(directory)
    assert [line["epoch"] for line in lines] == list(range(len(lines)))
    uncounted = 0
    for line in lines:
        assert line["validated"] == [1] * audited.SAMPLES
        assert max(line["trained"]) == 1
        uncounted += line["trained"].count(0)
    assert uncounted <= allow_lost_counts
    assert lines[-1]["loss"] == pytest.approx(_undisturbed_loss(len(lines)), abs=1e-9)
