"""The noise of gradients."""

from shoal.train.torch.gradient_noise_scale import (
    AdamGradientNoiseScale,
    GradientNoiseScale,
)

__all__ = [
    "AdamGradientNoiseScale",
    "GradientNoiseScale",
]
