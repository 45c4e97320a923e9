"""Trains with steps that take as long as the environment says: PARALLEL seconds, shared by the
workers, and SERIAL seconds on each. Ends after the epoch in which the file `enough` appears."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

import shoal.train as st

BATCH = 12


def main() -> None:
    st.init()
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = DataLoader(TensorDataset(torch.ones(BATCH * 5, 1)), batch_size=BATCH)
    model, optimizer, loader = st.prepare(model, optimizer, data)
    parallel, serial = float(os.environ["PARALLEL"]), float(os.environ["SERIAL"])
    for _ in st.epochs(10_000):
        enough = st.Accumulator()
        for (x,) in loader:
            time.sleep(parallel * len(x) / BATCH + serial)
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
        enough["files"] += Path("enough").exists() if st.rank() == 0 else 0
        with enough.synchronized():
            if enough["files"]:
                break


if __name__ == "__main__":
    main()
