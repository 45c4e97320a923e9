"""Trains with Hugging Face's Trainer and writes which samples each step used.

Ends after EPOCHS epochs.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments

from shoal.train.trainers import elastic
from tests.train.sample_log import BATCH, EPOCHS, PAUSE, SAMPLES, write_samples


class Config(PretrainedConfig):  # type: ignore[misc, unused-ignore]
    model_type = "line"


class Line(PreTrainedModel):  # type: ignore[misc, unused-ignore]
    config_class = Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.layer = torch.nn.Linear(1, 1)
        self.post_init()

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> dict[str, torch.Tensor]:
        self.index = index
        return {"loss": (self.layer(x) - 2 * x).pow(2).mean()}


class Recording(Trainer):  # type: ignore[misc, unused-ignore]
    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        loss: torch.Tensor = super().training_step(*args, **kwargs)
        model = self.accelerator.unwrap_model(self.model)
        write_samples(self.state.global_step, model.index.tolist())
        time.sleep(PAUSE)
        return loss


def main() -> None:
    data = [{"x": torch.tensor([i / SAMPLES]), "index": torch.tensor(i)} for i in range(SAMPLES)]
    arguments = TrainingArguments(
        "out", num_train_epochs=EPOCHS, logging_steps=5, report_to=[], use_cpu=True,
        per_device_train_batch_size=BATCH, save_strategy="no", disable_tqdm=True,
        remove_unused_columns=False,
    )  # fmt: skip
    trainer = Recording(model=Line(Config()), args=arguments, train_dataset=data)
    elastic(trainer, batch_size=BATCH)
    print(json.dumps({"start": os.environ.get("WORLD_SIZE", "1")}), flush=True)
    trainer.train()
    print(json.dumps({"end": trainer.state.global_step}), flush=True)


if __name__ == "__main__":
    main()
