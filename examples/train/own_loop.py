"""A training loop made elastic: the lines with `st.` are all that Shoal needs."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import shoal.train as st

torch.manual_seed(0)
inputs = torch.randn(20_000, 16)
labels = (inputs[:, :4].sum(1) > 0).long()

st.init()
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
loader = DataLoader(TensorDataset(inputs, labels), batch_size=128, shuffle=True)
model, optimizer, scheduler, loader = st.prepare(model, optimizer, scheduler, loader)
loader.grow_batch(max=1024, per_worker=(32, 512))

for epoch in st.epochs(10):
    losses = st.Accumulator()
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        st.report(loss=loss)
        losses["sum"] += loss.item() * len(x)
        losses["samples"] += len(x)
    scheduler.step()
    with losses.synchronized():
        if st.rank() == 0:
            mean = losses["sum"] / losses["samples"]
            print(f"epoch {epoch}: loss {mean:.4f} with {st.workers()} workers", flush=True)
