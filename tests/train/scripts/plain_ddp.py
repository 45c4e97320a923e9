"""Trains with plain DistributedDataParallel, as under torchrun, and saves a checkpoint of its own.

Ends when the file `enough` appears. Rank 0 prints a JSON line when it starts.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SAVED = Path("plain.pt")


def main() -> None:
    dist.init_process_group("gloo")
    model = nn.Linear(4, 1)
    step = 0
    if SAVED.exists():
        saved = torch.load(SAVED)
        model.load_state_dict(saved["model"])
        step = saved["step"]
    if dist.get_rank() == 0:
        place = {"workers": dist.get_world_size(), "local_rank": os.environ["LOCAL_RANK"]}
        print(json.dumps({"epoch": step, **place}), flush=True)
    net = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    while True:
        optimizer.zero_grad()
        net(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
        step += 1
        enough = torch.tensor(int(dist.get_rank() == 0 and Path("enough").exists()))
        dist.broadcast(enough, 0)
        if dist.get_rank() == 0:
            torch.save({"model": model.state_dict(), "step": step}, "plain.new")
            Path("plain.new").rename(SAVED)
        if enough:
            break
        time.sleep(0.02)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
