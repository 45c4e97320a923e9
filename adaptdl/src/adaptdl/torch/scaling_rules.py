"""Rules for the learning rate at other batch sizes."""

from shoal.train.torch.scaling_rules import (
    AdamScale,
    AdaScale,
    LEGWScale,
    LinearScale,
    ScalingRuleBase,
    SqrtScale,
)

__all__ = [
    "AdaScale",
    "AdamScale",
    "LEGWScale",
    "LinearScale",
    "ScalingRuleBase",
    "SqrtScale",
]
