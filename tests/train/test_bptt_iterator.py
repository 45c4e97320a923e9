"""Token sequences in columns, shared by all workers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import torch, adaptdl.torch
from adaptdl.torch.iterator import AdaptiveBPTTIterator

adaptdl.torch.init_process_group("gloo")
tokens = torch.arange(500)
for batch in AdaptiveBPTTIterator(tokens, batch_size=10, bptt_len=5):
    assert (batch.target == batch.text + 1).all()
    print(*batch.text.shape, batch.text[0].tolist() == list(range(int(batch.text[0, 0]), 500, 50)))
seen = [int(t) for batch in AdaptiveBPTTIterator(tokens, 10, 5) for t in batch.text.flatten()]
print(sorted(seen) == [t for t in range(500) if t % 50 != 49])
for bad in ([[1, 2]], 1, 1), ([1, 2], 0, 1):
    try:
        AdaptiveBPTTIterator(*bad)
    except ValueError as error:
        print(error)
"""


def test_each_token_is_read_once_in_columns_that_go_on(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "ADAPTDL_CHECKPOINT_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    expected = ["5 10 True"] * 9 + ["4 10 True", "True"]
    expected += ["AdaptiveBPTTIterator needs one sequence of token numbers"]
    expected += ["batch_size and bptt_len must be at least 1"]
    assert done.stdout.splitlines() == expected, done.stderr
