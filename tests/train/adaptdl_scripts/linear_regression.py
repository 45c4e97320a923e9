"""AdaptDL's linear regression: y = 3x + 4 with noise."""

import argparse

import adaptdl.torch
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=100)
args = parser.parse_args()


class LRDataset(torch.utils.data.Dataset):
    def __init__(self, size):
        generator = torch.Generator().manual_seed(0)
        self.inputs = torch.rand(size, 1, generator=generator, dtype=torch.float64)
        noise = torch.randn(size, 1, generator=generator, dtype=torch.float64)
        self.targets = 3 * self.inputs + 4 + 0.1 * noise

    def __getitem__(self, index):
        return self.inputs[index], self.targets[index]

    def __len__(self):
        return len(self.inputs)


adaptdl.torch.init_process_group("gloo")

torch.manual_seed(0)
dataset = LRDataset(1000)
dataloader = adaptdl.torch.AdaptiveDataLoader(dataset, batch_size=30, shuffle=True, drop_last=True)
model = torch.nn.Linear(1, 1).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [50])
model = adaptdl.torch.AdaptiveDataParallel(model, optimizer, schedule)
loss_fn = torch.nn.MSELoss()

for epoch in adaptdl.torch.remaining_epochs_until(args.epochs):
    stats = adaptdl.torch.Accumulator()
    for inputs, targets in dataloader:
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        optimizer.step()
        stats["loss_sum"] += loss.item() * len(targets)
        stats["total"] += len(targets)
    schedule.step()
    with stats.synchronized():
        print("Train:", epoch, stats["total"], f"{stats['loss_sum']:.12f}", flush=True)

print("weight", model.module.weight.item(), "bias", model.module.bias.item())
