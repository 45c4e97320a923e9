"""A Sacred experiment as it stands in many repositories: it knows nothing of Ray or Shoal."""

from __future__ import annotations

import math
import random
from pathlib import Path

from dataset import data, load
from sacred import Experiment

ex = Experiment("regression", ingredients=[data])


@ex.config
def config():
    lr = 0.1
    epochs = 20
    momentum = 0.0


@ex.named_config
def slow():
    lr = 0.001
    epochs = 100


@ex.capture
def step(weights, point, lr, momentum, velocity):
    x, y = point
    error = weights[0] * x + weights[1] - y
    for index, gradient in enumerate((error * x, error)):
        velocity[index] = momentum * velocity[index] - lr * gradient
        weights[index] += velocity[index]
    return error**2


@ex.automain
def main(epochs, _run, _seed):
    random.seed(_seed)
    points = load()
    weights, velocity = [0.0, 0.0], [0.0, 0.0]
    loss = math.inf
    for epoch in range(epochs):
        random.shuffle(points)
        loss = sum(step(weights, point, velocity=velocity) for point in points) / len(points)
        _run.log_scalar("loss", loss, epoch)
    print(f"y = {weights[0]:.3f} x + {weights[1]:.3f}")
    Path("weights.txt").write_text(f"{weights[0]} {weights[1]}\n")
    _run.add_artifact("weights.txt")
    return loss
