"""What a training script calls besides `prepare`. Exported by `shoal.train`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from shoal.train.torch import epoch as _epochs
from shoal.train.torch import init_process_group
from shoal.train.worker import runtime
from shoal.train.worker.generation import Generation


def init(backend: str | None = None) -> None:
    """Join the other workers of the job. `backend` is nccl where there are GPUs, else gloo. By
    itself, with plain `python`, a script is the only worker."""
    init_process_group(backend or ("nccl" if torch.cuda.is_available() else "gloo"))


def epochs(count: int) -> Iterator[int]:
    """Iterate over the epochs that are left until `count`: in a job that was stopped and resumed,
    those that are finished are not repeated."""
    return _epochs.remaining_epochs_until(count)


def notice() -> float | None:
    """In how many seconds the node of this worker goes away, or None if it stays. Nothing has to be
    done: training goes on elsewhere. Also works in scripts that torchrun could run."""
    return runtime.seconds_left()


def report(**values: float | torch.Tensor) -> None:
    """Show figures such as `loss` over time on the page and in the job's journal. Call it as often
    as you like: the values of rank 0 are sent once a second, and only those are read from a GPU.
    By itself, a script reports nothing. Also works in scripts that torchrun could run."""
    runtime.report(values)


def on_rescale(act: Callable[[int, int], object]) -> None:
    """Call `act(rank, workers)` whenever the workers have changed, between two steps, and once
    when training begins."""
    runtime.current_session().register_rebuilt(_Callback(act))


def rank() -> int:
    """The rank of this worker at the moment."""
    return runtime.current_session().rank


def workers() -> int:
    """How many workers train at the moment."""
    return runtime.current_session().size


class _Callback:
    def __init__(self, act: Callable[[int, int], object]) -> None:
        self._act = act

    def rebuild(self, generation: Generation) -> None:
        self._act(generation.rank, generation.size)
