"""Scripts by AdaptDL's API on replicas that are restarted with another number: what they see."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

import pytest
import torch

import shoal.train.torch as adl
from shoal.train import checkpoint, collective, env
from tests.train.replicas import run_replicas

pytestmark = pytest.mark.workers


def _data(size: int) -> Any:
    return torch.utils.data.TensorDataset(torch.arange(size))


# --- loaders ---


def _batches_until(stop_before: int | None) -> list[tuple[int, int, int]]:
    """The batches of a loop, as samples here, per worker and in all. Leaves it with a checkpoint
    before the batch of that number."""
    loader = adl.AdaptiveDataLoader(_data(100), batch_size=10)
    served: list[tuple[int, int, int]] = []
    for count, (samples,) in enumerate(loader):
        if count == stop_before:
            checkpoint.save_all_states()
            return served
        assert loader.current_local_bsz is not None
        assert loader.current_batch_size is not None
        served.append((len(samples), loader.current_local_bsz, loader.current_batch_size))
    return served


def _stop_after_2() -> Any:
    return _batches_until(2)


def _stop_after_5() -> Any:
    return _batches_until(5)


def _to_the_end() -> Any:
    return _batches_until(None)


def test_a_loader_goes_on_at_its_sample_with_another_number_of_replicas(tmp_path: Path) -> None:
    assert run_replicas(_stop_after_2, 1, tmp_path) == [[(10, 10, 10)] * 2]
    assert run_replicas(_stop_after_5, 4, tmp_path, 1) == [[(3, 3, 12)] * 5] * 4
    assert run_replicas(_to_the_end, 2, tmp_path, 2) == [[(5, 5, 10)] * 2] * 2


def _left_early_and_again() -> int:
    loader = adl.AdaptiveDataLoader(_data(100), batch_size=10)
    for _ in loader:
        break
    return sum(1 for _ in loader)


def test_a_loop_after_one_that_was_left_begins_at_the_first_sample(tmp_path: Path) -> None:
    assert run_replicas(_left_early_and_again, 1, tmp_path) == [10]


# --- epochs ---


def _epochs() -> list[int]:
    seen: list[int] = []
    for epoch in adl.remaining_epochs_until(10):
        assert adl.finished_epochs() == adl.current_epoch() == epoch
        if epoch == 5 and env.num_restarts() == 0:
            checkpoint.save_all_states()
            return seen
        seen.append(epoch)
    return seen


def test_five_replicas_go_on_in_the_epoch_of_the_one_before_them(tmp_path: Path) -> None:
    assert run_replicas(_epochs, 1, tmp_path) == [[0, 1, 2, 3, 4]]
    assert run_replicas(_epochs, 5, tmp_path, 1) == [[5, 6, 7, 8, 9]] * 5


# --- accumulators ---


def _accumulate() -> list[dict[str, int]]:
    accumulator = adl.Accumulator()
    seen: list[dict[str, int]] = []

    def look() -> None:
        assert dict(accumulator) == {}
        with accumulator.synchronized():
            seen.append(dict(accumulator))

    if env.num_restarts() == 0:
        accumulator["a"] += 15
        look()
        accumulator["a"] -= 5
    elif env.num_restarts() == 1:
        accumulator["a"] += env.replica_rank()
        accumulator["b"] += env.replica_rank()
        look()
    else:
        accumulator -= {"b": 5, "c": 5}
        look()
        with accumulator.synchronized():
            accumulator.clear()
        look()
    checkpoint.save_all_states()
    return seen


def test_sums_survive_restarts_with_what_was_added_since_the_last_look(tmp_path: Path) -> None:
    assert run_replicas(_accumulate, 1, tmp_path) == [[{"a": 15}]]
    assert run_replicas(_accumulate, 4, tmp_path, 1) == [[{"a": 16, "b": 6}]] * 4
    assert run_replicas(_accumulate, 2, tmp_path, 2) == [[{"a": 16, "b": -4, "c": -10}, {}]] * 2


# --- states ---


class _Counted(checkpoint.State):
    def __init__(self) -> None:
        super().__init__("counted")
        self.value = 0
        self.saved = self.synced = 0

    def save(self, fileobj: IO[bytes]) -> None:
        self.saved += 1
        fileobj.write(str(self.value).encode())

    def load(self, fileobj: IO[bytes]) -> None:
        self.value = int(fileobj.read())

    def sync(self) -> None:
        self.synced += 1


def _save_or_load() -> tuple[int, int, int]:
    state = _Counted()
    if not checkpoint.load_state(state):
        state.value = 7
    checkpoint.save_all_states()
    return state.value, state.saved, state.synced


def test_a_state_is_synced_everywhere_saved_on_rank_0_and_loaded_by_all(tmp_path: Path) -> None:
    assert run_replicas(_save_or_load, 1, tmp_path) == [(7, 1, 1)]
    assert run_replicas(_save_or_load, 2, tmp_path, 1) == [(7, 1, 1), (7, 0, 1)]


# --- collectives ---


def _collectives() -> tuple[set[int], str, list[int]]:
    collective.initialize()
    with pytest.raises(RuntimeError):
        collective.initialize()
    union = collective.allreduce({env.replica_rank()}, lambda a, b: a | b)
    first = collective.allreduce_async(1)
    second = collective.allreduce_async(2)
    late = [second.result(), first.result()]
    return union, collective.broadcast(f"of rank {env.replica_rank()}"), late


def test_five_replicas_combine_any_values(tmp_path: Path) -> None:
    assert run_replicas(_collectives, 5, tmp_path) == [({0, 1, 2, 3, 4}, "of rank 0", [10, 5])] * 5


# --- training ---


def _linear_regression() -> list[float]:
    torch.manual_seed(0)
    adl.init_process_group("gloo")
    x = torch.rand(128, 1)
    data = torch.utils.data.TensorDataset(x, 3 * x + 4 + 0.01 * torch.randn(128, 1))
    loader = adl.AdaptiveDataLoader(data, batch_size=32, shuffle=True)
    linear = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.3)
    model = adl.AdaptiveDataParallel(linear, optimizer)
    for _ in adl.remaining_epochs_until(100):
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    return [linear.weight.item(), linear.bias.item()]


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_line_is_fitted(tmp_path: Path, replicas: int) -> None:
    for weight, bias in run_replicas(_linear_regression, replicas, tmp_path):
        assert weight == pytest.approx(3, abs=0.1)
        assert bias == pytest.approx(4, abs=0.1)
