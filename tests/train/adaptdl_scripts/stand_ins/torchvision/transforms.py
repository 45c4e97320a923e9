from collections.abc import Callable
from typing import Any

import torch


class Compose:
    def __init__(self, steps: list[Callable[[Any], Any]]) -> None:
        self._steps = steps

    def __call__(self, value: Any) -> Any:
        for step in self._steps:
            value = step(value)
        return value


class ToTensor:
    def __call__(self, value: Any) -> Any:
        return value


class Normalize:
    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        self._mean, self._std = (torch.tensor(v)[:, None, None] for v in (mean, std))

    def __call__(self, value: Any) -> Any:
        return (value - self._mean) / self._std


class RandomHorizontalFlip:
    def __call__(self, value: Any) -> Any:
        return value.flip(-1) if torch.rand(()) < 0.5 else value


class RandomCrop:
    def __init__(self, size: int, padding: int) -> None:
        self._size, self._padding = size, padding

    def __call__(self, value: Any) -> Any:
        padded = torch.nn.functional.pad(value, [self._padding] * 4)
        top, left = (int(torch.randint(2 * self._padding + 1, ())) for _ in range(2))
        return padded[:, top : top + self._size, left : left + self._size]
