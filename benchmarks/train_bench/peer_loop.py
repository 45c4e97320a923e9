"""The loop of `timed.py` as other launchers run it: `peer_loop.py torchrun|ray|torchft DIRECTORY`.

Every worker writes the time of each step to a file of its own in DIRECTORY, RANK-PID.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

INPUTS, HIDDEN, BATCH = 64, 4096, 32


def _model() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))
    return model, torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)


def _train(directory: str, rank: int, net: Callable[..., Any], optimizer: Any) -> None:
    with (Path(directory) / f"{rank}-{os.getpid()}").open("a") as times:
        for x in _batches():
            optimizer.zero_grad()
            (net(x) ** 2).mean().backward()
            optimizer.step()
            times.write(f"{time.monotonic()}\n")
            times.flush()


def _batches() -> Iterator[torch.Tensor]:
    while True:
        yield torch.randn(BATCH, INPUTS)


def torchrun(directory: str) -> None:
    dist.init_process_group("gloo")
    model, optimizer = _model()
    _train(directory, dist.get_rank(), nn.parallel.DistributedDataParallel(model), optimizer)


def ray_train(directory: str) -> None:
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    def loop(config: dict[str, Any]) -> None:
        torchrun_without_init(config["directory"])

    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    trainer = TorchTrainer(
        loop,
        train_loop_config={"directory": directory},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            storage_path=f"{directory}/storage",
            failure_config=FailureConfig(max_failures=-1),
        ),
    )
    trainer.fit()


def torchrun_without_init(directory: str) -> None:
    """In a worker of Ray Train, which has joined the group already."""
    model, optimizer = _model()
    _train(directory, dist.get_rank(), nn.parallel.DistributedDataParallel(model), optimizer)


def torchft(directory: str) -> None:
    from torchft import (  # type: ignore[import-not-found]
        DistributedDataParallel,
        Manager,
        Optimizer,
        ProcessGroupGloo,
    )

    model, plain = _model()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    replica = int(os.environ["REPLICA"])

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        plain.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": plain.state_dict()},
        min_replica_size=1,
        replica_id=f"replica-{replica}-{os.getpid()}",
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=os.environ["LIGHTHOUSE"],
        hostname="127.0.0.1",
    )
    net = DistributedDataParallel(manager, model)
    _train(directory, replica, net, Optimizer(manager, plain))


if __name__ == "__main__":
    {"torchrun": torchrun, "ray": ray_train, "torchft": torchft}[sys.argv[1]](sys.argv[2])
