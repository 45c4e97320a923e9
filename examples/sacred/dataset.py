"""The data of the experiment, as an ingredient."""

from __future__ import annotations

import random

from sacred import Ingredient

data = Ingredient("data")


@data.config
def config():
    size = 50
    noise = 0.1


@data.capture
def load(size, noise):
    source = random.Random(7)
    points = []
    for _ in range(size):
        x = source.uniform(-1, 1)
        points.append((x, 3 * x - 1 + source.gauss(0, noise)))
    return points
