"""Lightning on a small model. The line with `elastic` adds resuming and durable checkpoints."""

import os

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from shoal.train.trainers import elastic


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> torch.Tensor:
        x, y = batch
        return nn.functional.mse_loss(self.layers(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


torch.manual_seed(0)
inputs = torch.randn(8_000, 8)
data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
workers = int(os.environ.get("WORLD_SIZE", "1"))
trainer = lightning.Trainer(
    accelerator="cpu", devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
    num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")), strategy="ddp", max_epochs=5,
    enable_progress_bar=False, logger=False, enable_checkpointing=False,
)  # fmt: skip
elastic(trainer)
trainer.fit(Classifier(), DataLoader(data, batch_size=64 // workers, shuffle=True))
print(f"done with {workers} workers")
