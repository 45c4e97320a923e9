"""What `shoal.train.prepare` takes, pairs and refuses, in one process."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset, WeightedRandomSampler

from shoal.train.torch.prepared_loader import PreparedDataLoader
from shoal.train.torch.resumable_sampler import ElasticSampler
from shoal.train.torch.unsupported_models import refuse_unsupported


def _refusal(script: str) -> str:
    code = f"import torch, shoal.train as st\nst.init()\nm = torch.nn.Linear(2, 1)\n{script}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stderr.splitlines()[-1]


@pytest.mark.processes
def test_an_optimizer_needs_its_model() -> None:
    error = _refusal("st.prepare(torch.optim.SGD(m.parameters(), lr=1))")
    assert "pass the model whose parameters it updates" in error


@pytest.mark.processes
def test_several_optimizers_for_one_model_are_refused() -> None:
    sgd = "torch.optim.SGD(m.parameters(), lr=1)"
    assert "several optimizers for one model" in _refusal(f"st.prepare(m, {sgd}, {sgd})")


@pytest.mark.processes
def test_other_objects_are_refused() -> None:
    assert "not str" in _refusal("st.prepare('model')")


def test_a_model_that_is_sharded_is_refused_with_the_way_that_works() -> None:
    class FullyShardedDataParallel(nn.Module):
        """As torch names it; the real one needs a process group."""

    with pytest.raises(TypeError, match=r"FSDP splits a model.*--rescale-mode restart"):
        refuse_unsupported(FullyShardedDataParallel())


def test_a_model_that_is_wrapped_already_is_refused() -> None:
    with pytest.raises(TypeError, match=r"model\.module"):
        refuse_unsupported(nn.DataParallel(nn.Linear(1, 1)))


_DATA: Any = TensorDataset(torch.arange(10.0))


def test_a_sampler_of_the_script_decides_the_order_of_a_pass() -> None:
    class Backwards(Sampler[int]):
        def __iter__(self) -> Any:
            return iter(range(9, -1, -1))

        def __len__(self) -> int:
            return 10

    loader = PreparedDataLoader(DataLoader(_DATA, batch_size=5, sampler=Backwards()))
    assert [batch[0].tolist() for batch in loader] == [[9, 8, 7, 6, 5], [4, 3, 2, 1, 0]]


def test_a_random_sampler_draws_the_same_order_on_every_worker() -> None:
    weights = [1.0] * 10
    orders: list[Any] = []
    for _ in range(2):
        sampler = WeightedRandomSampler(weights, 20)
        loader = PreparedDataLoader(DataLoader(_DATA, batch_size=5, sampler=sampler))
        torch.manual_seed(len(orders))
        orders.append([batch[0].tolist() for batch in loader])
    assert orders[0] == orders[1]
    assert len(orders[0]) == 4


def test_a_batch_sampler_of_the_script_is_refused() -> None:
    class Pairs(Sampler[list[int]]):
        def __iter__(self) -> Any:
            return iter([[0, 1]])

        def __len__(self) -> int:
            return 1

    with pytest.raises(TypeError, match="batch_sampler"):
        PreparedDataLoader(DataLoader(_DATA, batch_sampler=Pairs()))


def test_the_state_of_a_sampler_fits_a_group_of_another_size() -> None:
    data = range(20)
    before = [ElasticSampler(data, num_replicas=2, rank=rank) for rank in range(2)]
    used = [index for sampler in before for index in list(sampler)[:4]]
    for sampler in before:
        sampler.advance(8)
    after = [ElasticSampler(data, num_replicas=3, rank=rank) for rank in range(3)]
    for sampler in after:
        sampler.load_state_dict(before[0].state_dict())
    rest = [index for sampler in after for index in sampler]
    assert sorted(used + rest) == list(data)
    assert [len(sampler) for sampler in after] == [4, 4, 4]
