"""The samples that Lightning's loop uses when it resumes in the middle of a pass."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, TensorDataset, WeightedRandomSampler

from shoal.train.lightning_data import Position, ResumedSampler, resumable

_DATA = TensorDataset(torch.arange(100))


def _workers(monkeypatch: pytest.MonkeyPatch, count: int, rank: int = 0) -> None:
    monkeypatch.setenv("WORLD_SIZE", str(count))
    monkeypatch.setenv("RANK", str(rank))


def _resumed(
    monkeypatch: pytest.MonkeyPatch, workers: int, used: int, **options: Any
) -> list[list[int]]:
    """The batches of each worker in the rest of pass 3."""
    batches = []
    for rank in range(workers):
        _workers(monkeypatch, workers, rank)
        loader, sampler = resumable(DataLoader(_DATA, **options), seed=7)
        assert sampler is not None
        position = Position()
        position.use(loader, sampler)
        position.load({"epoch": 3, "used": used})
        sampler.set_epoch(3)
        batches.append([int(i) for (batch,) in loader for i in batch])
    return batches


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (3, 4)])
def test_other_workers_use_what_is_left_of_the_pass(
    before: int, after: int, shuffle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"batch_size": 4, "shuffle": shuffle}
    first = [i for part in _resumed(monkeypatch, before, 0, **options) for i in part[: 4 * 5]]
    rest = [i for part in _resumed(monkeypatch, after, 4 * 5 * before, **options) for i in part]
    assert set(first) | set(rest) == set(range(100))
    # Only the last step may repeat samples, so that each worker has one.
    assert len(first) + len(rest) - 100 < after


def test_every_pass_has_an_order_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    _workers(monkeypatch, 1)
    _, sampler = resumable(DataLoader(_DATA, shuffle=True), seed=0)
    assert sampler is not None
    orders = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        orders.append(tuple(sampler))
    assert len(set(orders)) == 3


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(_DATA, sampler=WeightedRandomSampler([1.0] * 100, 100)),
        DataLoader(_DATA, batch_sampler=BatchSampler(range(100), 3, False)),
        [1, 2, 3],
    ],
)
def test_a_loader_with_a_sampler_of_its_own_stays_as_it_is(loader: Any) -> None:
    assert resumable(loader, seed=0) == (loader, None)


def _trainer(batches: int) -> Any:
    current = SimpleNamespace(ready=0, started=0, processed=0, completed=0)
    loop = SimpleNamespace(
        batch_progress=SimpleNamespace(current=current), restarted_on_train_batch_end=True
    )
    fit_loop = SimpleNamespace(epoch_loop=loop)
    return SimpleNamespace(num_training_batches=batches, fit_loop=fit_loop)


def test_the_loop_counts_the_batches_that_the_new_workers_would_have_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _workers(monkeypatch, 2)
    loader, sampler = resumable(DataLoader(_DATA, batch_size=10), seed=0)
    assert isinstance(sampler, ResumedSampler)
    position = Position()
    position.use(loader, sampler)
    position.load({"epoch": 0, "used": 50})  # of which the rest is 3 batches of 20
    trainer = _trainer(batches=5)
    position.resume(trainer)
    assert trainer.fit_loop.epoch_loop.batch_progress.current.ready == 2


def test_no_checkpoint_is_taken_after_the_last_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    _workers(monkeypatch, 1)
    loader, sampler = resumable(DataLoader(_DATA, batch_size=40), seed=0)
    assert sampler is not None
    position = Position()
    position.use(loader, sampler)
    assert [position.advance() for _ in range(3)] == [True, True, False]
