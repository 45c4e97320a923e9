"""Which samples each step of a script used, written by its workers and read by the test."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

SAMPLES, BATCH, EPOCHS, PAUSE = 300, 12, 3, 0.02


def write_samples(step: int, samples: list[int]) -> None:
    rank, workers = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    line = {"at": time.time(), "step": step, "rank": rank, "workers": workers, "samples": samples}
    with Path(f"samples-{rank}-{os.getpid()}").open("a") as file:
        file.write(json.dumps(line) + "\n")


def samples_by_step(directory: Path) -> dict[int, list[int]]:
    """The samples of each step as the workers used them that made it last."""
    last: dict[int, dict[int, dict[str, object]]] = {}
    lines = [
        json.loads(line)
        for path in directory.glob("samples-*")
        for line in path.read_text().splitlines()
    ]
    for line in sorted(lines, key=lambda line: float(line["at"])):
        last.setdefault(line["step"], {})[line["rank"]] = line
    result = {}
    for step, by_rank in last.items():
        workers = max(by_rank.values(), key=lambda line: float(str(line["at"])))["workers"]
        of_step = [by_rank[rank]["samples"] for rank in by_rank if rank < int(str(workers))]
        result[step] = [int(i) for samples in of_step for i in samples]  # type: ignore[attr-defined]
    return result
