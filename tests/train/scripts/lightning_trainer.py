"""Trains with Lightning and writes which samples each step used.

Ends after EPOCHS epochs.
"""

from __future__ import annotations

import json
import os
import time

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

from shoal.train.trainers import elastic
from tests.train.sample_log import BATCH, EPOCHS, PAUSE, SAMPLES, write_samples


class Line(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> torch.Tensor:
        x, index = batch
        write_samples(self.trainer.global_step, index.tolist())
        time.sleep(PAUSE)
        loss = (self.layer(x) - 2 * x).pow(2).mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main() -> None:
    torch.manual_seed(0)
    workers = int(os.environ.get("WORLD_SIZE", "1"))
    x = torch.arange(SAMPLES).unsqueeze(1) / SAMPLES
    trainer = lightning.Trainer(
        accelerator="cpu", devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")), strategy="ddp",
        max_epochs=EPOCHS, enable_progress_bar=False, logger=False, enable_checkpointing=False,
    )  # fmt: skip
    elastic(trainer)
    print(json.dumps({"start": workers}), flush=True)
    data = TensorDataset(x, torch.arange(SAMPLES))
    trainer.fit(Line(), DataLoader(data, batch_size=BATCH // workers, shuffle=True))
    print(json.dumps({"end": trainer.global_step}), flush=True)


if __name__ == "__main__":
    main()
