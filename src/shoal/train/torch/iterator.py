"""Token sequences for truncated back-propagation through time, shared by all workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.data import Dataset

from shoal.train.torch.data import AdaptiveDataLoader

IGNORED = -100  # PyTorch's losses ignore this target


class Batch(NamedTuple):
    """Tokens and those that follow them, each of shape (time, columns)."""

    text: torch.Tensor
    target: torch.Tensor


class _Chunks(Dataset[Any]):
    """The tokens as columns of equal length, cut into chunks. One sample is a column's part of a
    chunk; the columns of a chunk follow one another."""

    def __init__(self, tokens: torch.Tensor, columns: int, bptt_len: int) -> None:
        rows = len(tokens) // columns
        self._data = tokens[: rows * columns].view(columns, rows)
        self._bptt_len = bptt_len
        self._count = -(-max(0, rows - 1) // bptt_len)

    def __len__(self) -> int:
        return self._count * len(self._data)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        chunk, column = divmod(index, len(self._data))
        begin = chunk * self._bptt_len
        part = self._data[column, begin : begin + self._bptt_len + 1]
        return part[:-1], part[1:]


class AdaptiveBPTTIterator(AdaptiveDataLoader):
    """Iterates over `dataset`, a tensor or sequence of token numbers, in `batch_size` columns of
    all workers together. Columns stay with their worker as long as the membership and the batch
    size do, if the number of workers divides `batch_size`. If it does not, the last batch may be
    padded, with targets that losses ignore."""

    def __init__(
        self,
        dataset: torch.Tensor | Sequence[int],
        batch_size: int,
        bptt_len: int,
        max_batch_size: int | None = None,
        local_bsz_bounds: tuple[int, int] | None = None,
        **kwargs: Any,
    ) -> None:
        tokens = torch.as_tensor(dataset)
        if tokens.dim() != 1:
            raise ValueError("AdaptiveBPTTIterator needs one sequence of token numbers")
        if batch_size < 1 or bptt_len < 1:
            raise ValueError("batch_size and bptt_len must be at least 1")
        chunks = _Chunks(tokens, batch_size, bptt_len)
        super().__init__(chunks, batch_size, collate_fn=_collate, **kwargs)
        if max_batch_size is not None:
            self.autoscale_batch_size(max_batch_size, local_bsz_bounds)


def _collate(parts: list[tuple[torch.Tensor, torch.Tensor]]) -> Batch:
    pad = torch.nn.utils.rnn.pad_sequence
    text = pad([text for text, _ in parts])
    return Batch(text, pad([target for _, target in parts], padding_value=IGNORED))
