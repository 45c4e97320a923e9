"""Hugging Face's Trainer on a tiny random model. The line with `elastic` adds resuming, durable
checkpoints, and the same samples per step whatever the number of workers."""

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from shoal.train.trainers import elastic

torch.manual_seed(0)
tokens = torch.randint(5, 100, (2_000, 16))
labels = (tokens[:, 0] > 50).long()
data = [{"input_ids": t, "labels": y} for t, y in zip(tokens, labels, strict=True)]
config = BertConfig(
    vocab_size=100, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
    intermediate_size=64, max_position_embeddings=16,
)  # fmt: skip
trainer = Trainer(
    model=BertForSequenceClassification(config),
    args=TrainingArguments(
        "out", num_train_epochs=3, logging_steps=50, report_to=[], use_cpu=True,
        per_device_train_batch_size=32, save_steps=50, disable_tqdm=True,
    ),
    train_dataset=data,
)  # fmt: skip
elastic(trainer, batch_size=32)
trainer.train()
