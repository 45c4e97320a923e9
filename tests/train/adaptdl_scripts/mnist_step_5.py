"""AdaptDL's MNIST tutorial with its fifth step, accumulated statistics, and TensorBoard."""

import argparse
import os

import adaptdl
import adaptdl.env
import adaptdl.torch
import torch
import torch.nn.functional as F
from torch import optim
from torch.optim.lr_scheduler import StepLR
from torch.utils.tensorboard import SummaryWriter
from torchvision import datasets, transforms

from mnist_step_4 import Net


def train(model, device, train_loader, optimizer, epoch, writer):
    stats = adaptdl.torch.Accumulator()
    model.train()
    for data, target in train_loader:
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        stats["total"] += len(target)
        if adaptdl.env.replica_rank() == 0:
            train_loader.to_tensorboard(writer, epoch, tag_prefix="AdaptDL/Data")
            model.to_tensorboard(writer, epoch, tag_prefix="AdaptDL/Model")
    with stats.synchronized():
        print("Train:", epoch, stats["total"], flush=True)


def test(model, device, test_loader, epoch, writer):
    model.eval()
    stats = adaptdl.torch.Accumulator()
    with torch.no_grad():
        for data, target in test_loader:
            data, target = data.to(device), target.to(device)
            output = model(data)
            stats["test_loss"] += F.nll_loss(output, target, reduction="sum").item()
            pred = output.argmax(dim=1, keepdim=True)
            stats["correct"] += pred.eq(target.view_as(pred)).sum().item()
            stats["total"] += len(target)
    with stats.synchronized():
        writer.add_scalar("Test/Loss", stats["test_loss"] / stats["total"], epoch)
        writer.add_scalar("Test/Accuracy", 100.0 * stats["correct"] / stats["total"], epoch)
        print("Valid:", epoch, stats["total"], flush=True)


def main():
    parser = argparse.ArgumentParser(description="PyTorch MNIST Example")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--lr", type=float, default=1.0)
    args = parser.parse_args()
    torch.manual_seed(1)
    device = torch.device("cpu")
    transform = transforms.Compose(
        [transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))]
    )
    adaptdl.torch.init_process_group("gloo")
    root = adaptdl.env.share_path() or "../data"
    dataset1 = datasets.MNIST(root, train=True, download=True, transform=transform)
    dataset2 = datasets.MNIST(root, train=False, transform=transform)
    train_loader = adaptdl.torch.AdaptiveDataLoader(
        dataset1, drop_last=True, batch_size=args.batch_size, shuffle=True
    )
    test_loader = adaptdl.torch.AdaptiveDataLoader(dataset2, batch_size=64)
    train_loader.autoscale_batch_size(128, local_bsz_bounds=(8, 64))
    model = Net().to(device)
    optimizer = optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.99)
    model = adaptdl.torch.AdaptiveDataParallel(model, optimizer, scheduler)
    logdir = os.path.join(os.getenv("ADAPTDL_TENSORBOARD_LOGDIR", "/tmp"), adaptdl.env.job_id())
    with SummaryWriter(logdir) as writer:
        for epoch in adaptdl.torch.remaining_epochs_until(args.epochs):
            train(model, device, train_loader, optimizer, epoch, writer)
            test(model, device, test_loader, epoch, writer)
            scheduler.step()


if __name__ == "__main__":
    main()
