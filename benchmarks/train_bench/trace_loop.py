"""The training of `train_trace` as each system runs it.

`trace_loop.py plain|shoal|ray|torchft DIRECTORY`; workers write their steps to DIRECTORY.
"""

from __future__ import annotations

import os
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.train_bench import trace_workload as workload
from benchmarks.train_bench.spot_trace import WORKERS
from benchmarks.train_bench.trace_workload import BATCH, Samples, StepLog

FOREVER = 1_000_000


def plain(directory: str) -> None:
    """Plain DistributedDataParallel with torchrun's variables: what an undisturbed group can do."""
    rank, workers = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    model, optimizer = workload.model_and_optimizer()
    net = model
    if workers > 1:
        dist.init_process_group("gloo")
        net = torch.nn.parallel.DistributedDataParallel(model)
    data, log = Samples(), StepLog(directory)
    for step in range(FOREVER):
        indices = workload.part_of(step, rank, workers)
        log.begin(step, rank, workers, indices)
        workload.compute(len(indices))
        workload.train_step(net, optimizer, data, indices)
        log.end(step, rank, workload.full_loss(model, data))


def shoal(directory: str) -> None:
    import shoal.train as st

    with (Path(directory) / "agent-sockets").open("a") as sockets:
        sockets.write(os.environ.get("SHOAL_TRAIN_SOCKET", "") + "\n")
    st.init()
    model, optimizer = workload.model_and_optimizer()
    # It changes nothing: its state is the number of steps, which a new worker gets with the rest.
    counter = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    data, log = Samples(), StepLog(directory)
    loader = torch.utils.data.DataLoader(
        data, batch_size=BATCH, shuffle=True, collate_fn=workload.as_it_is
    )
    net, optimizer, counter, loader = st.prepare(model, optimizer, counter, loader)
    for _ in st.epochs(FOREVER):
        for indices, x, y in loader:
            step = counter.last_epoch
            log.begin(step, st.rank(), st.workers(), indices.tolist())
            workload.compute(len(indices))
            optimizer.zero_grad()
            workload.loss_of(net, x, y).backward()
            optimizer.step()
            counter.step()
            log.end(step, st.rank(), workload.full_loss(model, data))


# --- Ray Train ---


def ray_train(directory: str) -> None:
    """The driver, on the head whose address is in HEAD_IP."""
    import ray
    from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    ray.init(os.environ["RAY_ADDRESS"], _node_ip_address=os.environ["HEAD_IP"])
    TorchTrainer(
        ray_worker,
        train_loop_config={"directory": directory},
        scaling_config=ScalingConfig(
            num_workers=(1, WORKERS),
            elastic_resize_monitor_interval_s=1.0,  # 60 by default
        ),
        run_config=RunConfig(
            storage_path=f"{directory}/storage",
            failure_config=FailureConfig(max_failures=-1),
            checkpoint_config=CheckpointConfig(num_to_keep=2),
        ),
    ).fit()


def ray_worker(config: dict[str, Any]) -> None:
    """Checkpoints every three seconds, which is 60 s at the speed of the trace, and every second
    from the notice that a node ends: what is trained after the last one is lost with the node."""
    from ray import train

    context = train.get_context()
    rank, workers = context.get_world_rank(), context.get_world_size()
    model, optimizer = workload.model_and_optimizer()
    step = _load_checkpoint(model, optimizer)
    net = torch.nn.parallel.DistributedDataParallel(model)
    data, log = Samples(), StepLog(config["directory"])
    while True:
        indices = workload.part_of(step, rank, workers)
        log.begin(step, rank, workers, indices)
        workload.compute(len(indices))
        workload.train_step(net, optimizer, data, indices)
        log.end(step, rank, workload.full_loss(model, data))
        step += 1
        # With N workers a second has N steps. All workers must come to the same decision.
        if step % workers == 0 and (
            train.get_preemption_info() is not None or step % (3 * workers) == 0
        ):
            _save_checkpoint(rank, step, model, optimizer)


def _save_checkpoint(rank: int, step: int, model: Any, optimizer: Any) -> None:
    from ray import train

    with tempfile.TemporaryDirectory() as directory:
        checkpoint = None
        if rank == 0:
            state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, f"{directory}/state.pt")
            checkpoint = train.Checkpoint.from_directory(directory)
        train.report({"step": step}, checkpoint=checkpoint)


def _load_checkpoint(model: Any, optimizer: Any) -> int:
    from ray import train

    checkpoint = train.get_checkpoint()
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as directory:
        state = torch.load(f"{directory}/state.pt")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


# --- torchft ---


def torchft(directory: str) -> None:
    """One replica, which trains the part PART of the samples, as torchft's sampler splits them. A
    step without that replica leaves its part out. Its DistributedDataParallel ends with an
    AssertionError when a peer is lost, so gradients are averaged by its manager."""
    import torchft as ft  # type: ignore[import-not-found]

    model, optimizer = workload.model_and_optimizer()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    part = int(os.environ["PART"])

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    manager = ft.Manager(
        pg=ft.ProcessGroupGloo(timeout=timedelta(seconds=5)),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        min_replica_size=1,
        replica_id=f"replica-{os.getpid()}",
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=os.environ["LIGHTHOUSE"],
        hostname="127.0.0.1",
    )
    wrapped = ft.Optimizer(manager, optimizer)
    data, log = Samples(), StepLog(directory)
    while True:
        step = manager.current_step()
        indices = workload.part_of(step, part, WORKERS)
        wrapped.zero_grad()  # agrees on the replicas of this step, in the background
        workload.compute(len(indices))
        workload.loss_of(model, data.x[indices], data.y[indices]).backward()
        gradients = torch.cat([p.grad.flatten() for p in model.parameters()])
        manager.allreduce(gradients).wait()
        torch.nn.utils.vector_to_parameters(gradients, [p.grad for p in model.parameters()])
        wrapped.step()
        if manager.current_step() == step + 1 and manager.is_participating():
            log.begin(step, part, WORKERS, indices)
            log.end(step, part, workload.full_loss(model, data))


if __name__ == "__main__":
    modes = {"plain": plain, "shoal": shoal, "ray": ray_train, "torchft": torchft}
    modes[sys.argv[1]](sys.argv[2])
