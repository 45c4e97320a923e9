"""Small made-up data under the names of torchvision: nothing is downloaded."""

from torchvision import datasets, transforms

__all__ = ["datasets", "transforms"]
