"""Hugging Face's Trainer and Lightning's Trainer on workers that are started again when their
number changes: one line adds resuming, durable checkpoints, and a checkpoint before the end."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from shoal.train import lightning_data, saved_directories
from shoal.train.worker import runtime

_SAVE_INTERVAL_S = 60.0
_STOPPED = 143


def elastic(trainer: Any, batch_size: int | None = None) -> Any:
    """Make a trainer of Hugging Face or Lightning resume from the newest checkpoint of the job,
    save one every minute, and save one and exit when its workers are ended. Returns the trainer.

    `batch_size` is for Hugging Face: the samples of one step on all workers together. With it, a
    group of any size that divides it continues with the next sample; without it,
    `per_device_train_batch_size` stays, and the samples of a step change with the workers.
    """
    package = type(trainer).__module__
    kinds = {kind.__module__.split(".")[0] for kind in type(trainer).__mro__}
    if kinds & {"lightning", "pytorch_lightning"}:
        if batch_size is not None:
            raise ValueError("batch_size is for Hugging Face; Lightning's loaders have their own")
        return _elastic_lightning(trainer)
    if "transformers" in kinds or hasattr(trainer, "callback_handler"):
        return _elastic_hugging_face(trainer, batch_size)
    raise TypeError(
        f"{package}.{type(trainer).__name__} is no trainer of transformers or lightning"
    )


class _Moments:
    """When to save, and when to exit: agreed on by all workers, since SIGTERM and the clock come to
    each of them at another step."""

    def __init__(self) -> None:
        self._terminated = False
        self._saved_at = time.monotonic()
        self.handle_sigterm()

    def handle_sigterm(self) -> None:
        signal.signal(signal.SIGTERM, self._terminate)

    def _terminate(self, number: int, frame: object) -> None:
        self._terminated = True

    def check(self) -> tuple[bool, bool]:
        """Whether to save now, and whether to exit then."""
        is_first = not _is_distributed() or dist.get_rank() == 0
        is_due = is_first and time.monotonic() - self._saved_at >= _SAVE_INTERVAL_S
        flags = torch.tensor([int(is_due), int(self._terminated)])
        if _is_distributed():
            device = "cuda" if dist.get_backend() == "nccl" else "cpu"
            flags = flags.to(device)
            dist.all_reduce(flags, op=dist.ReduceOp.MAX)
        save, end = bool(flags[0]), bool(flags[1])
        if save or end:
            self._saved_at = time.monotonic()
        return save or end, end


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _save(directory: Path, *, end: bool) -> None:
    """All workers call this; rank 0 copies. The others wait until it is durable."""
    saved_directories.save(directory)
    if _is_distributed():
        dist.barrier()
    if end:
        sys.exit(_STOPPED)


def _numbers(logged: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in logged.items()
        if isinstance(value, int | float)
        or (isinstance(value, torch.Tensor) and value.numel() == 1)
    }


# --- Hugging Face ---


def _elastic_hugging_face(trainer: Any, batch_size: int | None) -> Any:
    from transformers import TrainerCallback

    moments = _Moments()
    if batch_size is not None:
        _share_batch(trainer, batch_size)

    class Durable(TrainerCallback):  # type: ignore[misc, unused-ignore]
        """Saves, and ends the script when its workers are ended."""

        def __init__(self) -> None:
            self._ends = False

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
            save, self._ends = moments.check()
            control.should_save = control.should_save or save
            return control

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            runtime.report(_numbers(logs or {}))

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            _save(Path(args.output_dir) / f"checkpoint-{state.global_step}", end=self._ends)

    trainer.add_callback(Durable())
    train: Callable[..., Any] = trainer.train

    def resumed(resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        if resume_from_checkpoint is None:
            resume_from_checkpoint = saved_directories.latest_checkpoint()
        return train(resume_from_checkpoint, *args, **kwargs)

    trainer.train = resumed
    return trainer


def _share_batch(trainer: Any, batch_size: int) -> None:
    """A step has `batch_size` samples on any number of workers: then the number of a step tells
    which samples were used before it."""
    args, world = trainer.args, _world_size()
    local, rest = divmod(batch_size, world * args.gradient_accumulation_steps)
    if rest or not local:
        raise ValueError(
            f"{batch_size} samples per step cannot be split over {world} workers with "
            f"{args.gradient_accumulation_steps} accumulation steps; choose a batch_size that the "
            f"numbers of workers divide, such as {world * args.gradient_accumulation_steps}"
        )
    args.per_device_train_batch_size = local
    trainer._train_batch_size = args.train_batch_size  # which it took from them when it was made


# --- Lightning ---


def _elastic_lightning(trainer: Any) -> Any:
    from lightning.pytorch.callbacks import Callback

    moments, position = _Moments(), lightning_data.Position()

    class Durable(Callback):  # type: ignore[misc, unused-ignore]
        """Saves, and ends the script when its workers are ended."""

        def on_train_start(self, trainer: Any, *_: Any) -> None:
            moments.handle_sigterm()  # Lightning's own handler would end the loop without a save
            position.resume(trainer)

        def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
            is_within_pass = position.advance()
            runtime.report(_numbers(trainer.callback_metrics))
            save, end = moments.check() if is_within_pass else (False, False)
            if save:
                directory = Path(trainer.default_root_dir) / "elastic"
                trainer.save_checkpoint(directory / "last.ckpt")
                _save(directory, end=end)

        def state_dict(self) -> dict[str, Any]:
            return position.state()

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            position.load(state_dict)

    trainer.callbacks.append(Durable())
    fit: Callable[..., Any] = trainer.fit

    def resumed(
        model: Any, train_dataloaders: Any = None, *args: Any, ckpt_path: Any = None, **kwargs: Any
    ) -> Any:
        if ckpt_path is None and (saved := saved_directories.latest_checkpoint()):
            ckpt_path = f"{saved}/last.ckpt"
        if train_dataloaders is not None:
            train_dataloaders = _resumable(train_dataloaders, position)
        else:
            source = kwargs.get("datamodule") or (args[1] if len(args) > 1 else None) or model
            made: Callable[[], Any] = source.train_dataloader
            source.train_dataloader = lambda: _resumable(made(), position)
        return fit(model, train_dataloaders, *args, ckpt_path=ckpt_path, **kwargs)

    trainer.fit = resumed
    return trainer


def _resumable(loader: Any, position: lightning_data.Position) -> Any:
    made, sampler = lightning_data.resumable(loader, seed=int(os.environ.get("PL_GLOBAL_SEED", 0)))
    if sampler is None:
        print(
            "shoal: the training loader has a sampler or batches of its own; workers that start "
            "again in the middle of an epoch repeat its samples from the start",
            flush=True,
        )
    else:
        position.use(made, sampler)
    return made
