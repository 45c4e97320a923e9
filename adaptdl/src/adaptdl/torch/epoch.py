"""Epochs that a restarted script enters where it was."""

from shoal.train.torch.epoch import (
    current_epoch,
    finished_epochs,
    remaining_epochs_until,
)

__all__ = [
    "current_epoch",
    "finished_epochs",
    "remaining_epochs_until",
]
