"""AdaptDL's API for PyTorch."""

# Scripts use these after `import adaptdl.torch`.
import adaptdl.checkpoint
import adaptdl.collective
import adaptdl.env
import adaptdl.goodput
import adaptdl.torch._metrics
import adaptdl.torch.accumulator
import adaptdl.torch.data
import adaptdl.torch.epoch
import adaptdl.torch.gradient_noise_scale
import adaptdl.torch.parallel
import adaptdl.torch.scaling_rules
from adaptdl.torch.accumulator import Accumulator
from adaptdl.torch.data import AdaptiveDataLoader, ElasticSampler, current_dataloader
from adaptdl.torch.epoch import current_epoch, finished_epochs, remaining_epochs_until
from adaptdl.torch.parallel import AdaptiveDataParallel
from shoal.train.torch import init_process_group, version_check

__all__ = [
    "Accumulator",
    "AdaptiveDataLoader",
    "AdaptiveDataParallel",
    "ElasticSampler",
    "current_dataloader",
    "current_epoch",
    "finished_epochs",
    "init_process_group",
    "remaining_epochs_until",
    "version_check",
]
