"""Trains with `shoal.train.prepare` in a loop of its own. FEATURE says what the loop uses.

Ends after the epoch in which the file `enough` appears. Rank 0 prints a JSON line per epoch.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

SAMPLES = 120
BATCH = 12
FEATURE = os.environ.get("FEATURE", "plain")
PAUSE = float(os.environ.get("PAUSE", "0.01"))


def sample(index: int) -> tuple[int, torch.Tensor, torch.Tensor]:
    x = torch.tensor([index / SAMPLES, (index % 7) / 7], dtype=torch.float64)
    return index, x, 3 * x[:1] + 4


class Samples(Dataset[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return sample(index)


class Stream(IterableDataset[Any]):
    """Has no length, and a state."""

    def __init__(self) -> None:
        self._next = 0

    def __iter__(self) -> Iterator[Any]:
        while self._next < SAMPLES:
            self._next += 1
            yield sample(self._next - 1)
        self._next = 0

    def state_dict(self) -> dict[str, int]:
        return {"next": self._next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._next = state["next"]


class Net(nn.Module):
    def __init__(self, feature: str) -> None:
        super().__init__()
        self.first = nn.Linear(2, 8)
        self.norm = nn.BatchNorm1d(8) if feature == "batchnorm" else nn.Identity()
        self.last = nn.Linear(8, 1)
        self.unused = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.last(torch.tanh(self.norm(self.first(x))))
        return result


def build(feature: str) -> tuple[nn.Module, Any, Any]:
    torch.manual_seed(0)
    model = Net(feature).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.99)


def loader_of(feature: str) -> DataLoader[Any]:
    dataset: Any = Stream() if feature == "stream" else Samples()
    return DataLoader(dataset, batch_size=BATCH, shuffle=feature != "stream")


def loss_of(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return ((output - y) ** 2).mean()


def evaluate(model: nn.Module) -> float:
    every = [sample(index) for index in range(SAMPLES)]
    x, y = torch.stack([s[1] for s in every]), torch.stack([s[2] for s in every])
    model.eval()
    with torch.no_grad():
        loss = loss_of(model(x), y).item()
    model.train()
    return loss


def main() -> None:
    import shoal.train as st

    st.init()
    model, optimizer, scheduler = build(FEATURE)
    inner = model
    if FEATURE == "compiled":
        inner = torch.compile(model, backend="eager")
    critic, critic_optimizer, scaler = None, None, None
    if FEATURE == "two_models":
        critic, critic_optimizer, _ = build(FEATURE)
    if FEATURE == "batchnorm":
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    net, optimizer, scheduler, scaler, critic, critic_optimizer, loader = st.prepare(
        inner, optimizer, scheduler, scaler, critic, critic_optimizer, loader_of(FEATURE),
        find_unused_parameters=True,
    )  # fmt: skip
    if FEATURE == "accumulated":
        loader.grow_batch(max=BATCH, per_worker=(1, 4))
    changes: list[tuple[int, int]] = []
    st.on_rescale(lambda rank, workers: changes.append((rank, workers)))
    for epoch in st.epochs(10_000):
        trained = st.Accumulator()
        net.train()
        for index, x, y in loader:
            if critic is not None:
                critic_optimizer.zero_grad()
                loss_of(critic(x), y).backward()
                critic_optimizer.step()
            optimizer.zero_grad()
            loss = loss_of(net(x), y)
            if scaler is not None:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            else:
                loss.backward()
                st.clip_grad_norm_(net.parameters(), 0.5)
                optimizer.step()
            st.report(loss=loss)
            if loader._elastic.is_optim_step():
                scheduler.step()
            trained.update({int(i): 1 for i in index})
            time.sleep(PAUSE)
        trained["enough"] += Path("enough").exists() if st.rank() == 0 else 0
        with trained.synchronized():
            if st.rank() == 0:
                report = {
                    "epoch": epoch,
                    "workers": st.workers(),
                    "changes": changes[-1],
                    "trained": [trained.get(i, 0) for i in range(SAMPLES)],
                    "loss": evaluate(model),
                    "critic": evaluate(critic.module) if critic is not None else None,
                }
                print(json.dumps(report), flush=True)
            enough = trained["enough"] > 0
        if enough:
            break


if __name__ == "__main__":
    main()
