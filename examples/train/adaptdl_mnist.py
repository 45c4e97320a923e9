"""A script as AdaptDL's tutorial writes it, with images made on the spot."""

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import TensorDataset

import adaptdl.torch

torch.manual_seed(0)
labels = torch.randint(10, (6_000,))
images = torch.randn(6_000, 1, 28, 28) + labels[:, None, None, None] / 5

adaptdl.torch.init_process_group("gloo")
model = nn.Sequential(
    nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(288, 10)
)
optimizer = optim.Adadelta(model.parameters(), lr=1.0)
scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
model = adaptdl.torch.AdaptiveDataParallel(model, optimizer, scheduler)
loader = adaptdl.torch.AdaptiveDataLoader(
    TensorDataset(images, labels), batch_size=64, shuffle=True
)
loader.autoscale_batch_size(1024, local_bsz_bounds=(32, 256))

for epoch in adaptdl.torch.remaining_epochs_until(5):
    stats = adaptdl.torch.Accumulator()
    model.train()
    for data, target in loader:
        optimizer.zero_grad()
        output = model(data)
        F.cross_entropy(output, target).backward()
        optimizer.step()
        stats["correct"] += (output.argmax(1) == target).sum().item()
        stats["total"] += len(target)
    scheduler.step()
    with stats.synchronized():
        if adaptdl.env.replica_rank() == 0:
            accuracy = stats["correct"] / stats["total"]
            print(f"epoch {epoch}: {accuracy:.1%} right, {adaptdl.env.num_replicas()} workers")
