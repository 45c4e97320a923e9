"""Sends nested state to another worker: its structure pickled, its tensors as they are."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class _Tensor:
    """Stands for the tensor of that index."""

    index: int


@dataclass(frozen=True)
class PackedState:
    structure: bytes
    layouts: tuple[tuple[torch.dtype, tuple[int, ...]], ...]
    tensors: tuple[torch.Tensor, ...]


def pack(state: object) -> PackedState:
    """The state's tensors, and all else as bytes. A tensor that occurs twice is sent once."""
    tensors: list[torch.Tensor] = []
    indexes: dict[int, int] = {}

    def strip(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if id(value) not in indexes:
                indexes[id(value)] = len(tensors)
                tensors.append(value)
            return _Tensor(indexes[id(value)])
        if isinstance(value, dict):
            return _rebuilt(value, {strip(key): strip(item) for key, item in value.items()})
        if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
            return type(value)(strip(item) for item in value)
        return value

    structure = pickle.dumps(strip(state))
    flat = tuple(tensor.detach().cpu().contiguous() for tensor in tensors)
    return PackedState(structure, tuple((t.dtype, tuple(t.shape)) for t in flat), flat)


def unpack(structure: bytes, tensors: tuple[torch.Tensor, ...]) -> Any:
    def fill(value: Any) -> Any:
        if isinstance(value, _Tensor):
            return tensors[value.index]
        if isinstance(value, dict):
            return _rebuilt(value, {fill(key): fill(item) for key, item in value.items()})
        if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
            return type(value)(fill(item) for item in value)
        return value

    return fill(pickle.loads(structure))


def allocate(layouts: tuple[tuple[torch.dtype, tuple[int, ...]], ...]) -> tuple[torch.Tensor, ...]:
    return tuple(torch.empty(shape, dtype=dtype) for dtype, shape in layouts)


def as_bytes(tensors: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """The same memory as rows of bytes: every dtype travels alike, empty tensors not at all."""
    return [t.reshape(-1).view(torch.uint8) for t in tensors if t.numel()]


def _rebuilt(original: dict[Any, Any], items: dict[Any, Any]) -> dict[Any, Any]:
    """A dictionary of the original's type, where that type can be made from pairs."""
    if type(original) is dict:
        return items
    try:
        return type(original)(items)
    except TypeError:
        return items
