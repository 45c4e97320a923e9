"""Plain DistributedDataParallel, as torchrun runs it. Its checkpoint is its own; `st.save` makes it
durable, so that the next group of workers finds it on any node."""

import os
import signal
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import shoal.train as st

EPOCHS = 5


def main() -> None:
    stopping = []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    inputs = torch.randn(8_000, 8)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sampler = st.ElasticSampler(data)
    if saved := st.latest_checkpoint():
        state = torch.load(Path(saved) / "state.pt")
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        sampler.load_state_dict(state["sampler"])
    world = dist.get_world_size()
    loader = DataLoader(data, batch_size=64 // world, sampler=sampler)
    for epoch in range(sampler.epoch, EPOCHS):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            count = torch.tensor([len(x), len(stopping)])
            dist.all_reduce(count)
            sampler.advance(int(count[0]))
            if count[1]:
                save(model, optimizer, sampler)
                os._exit(128 + signal.SIGTERM)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f} with {world} workers", flush=True)
        save(model, optimizer, sampler)
    dist.destroy_process_group()


def save(model: nn.Module, optimizer: torch.optim.Optimizer, sampler: st.ElasticSampler) -> None:
    if dist.get_rank() == 0:
        state = {
            "model": model.module.state_dict(),
            "optimizer": optimizer.state_dict(),
            "sampler": sampler.state_dict(),
        }
        with tempfile.TemporaryDirectory() as directory:
            torch.save(state, Path(directory) / "state.pt")
            st.save(directory)
    dist.barrier()


if __name__ == "__main__":
    main()
