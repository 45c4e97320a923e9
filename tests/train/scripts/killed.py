"""The script `audited`, whose workers end at a named point of a step.

A worker W dies when it comes to the point that is named in the file `die-W`. If `hang-W` names the
point, it does nothing more, and is silent; then there is a file `hangs-W`.
"""

from __future__ import annotations

import functools
import os
import signal
import time
from pathlib import Path
from typing import Any

# In each step, and those at a switch to another generation.
STEP_POINTS = ("boundary", "exchange", "forward", "reduction", "optimizer")
SWITCH_POINTS = ("flush", "begin", "sync", "rebuild")


def _end_if_wanted(point: str) -> None:
    worker = os.environ["SHOAL_TRAIN_WORKER"]
    if _names(Path(f"die-{worker}"), point):
        os.kill(os.getpid(), signal.SIGKILL)
    if _names(Path(f"hang-{worker}"), point):
        Path(f"hangs-{worker}").touch()
        time.sleep(10_000)


def _names(order: Path, point: str) -> bool:
    return order.exists() and order.read_text() == point


def _watch(owner: Any, name: str, point: str) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def watched(*args: Any, **kwargs: Any) -> Any:
        _end_if_wanted(f"before {point}")
        result = original(*args, **kwargs)
        _end_if_wanted(f"after {point}")
        return result

    setattr(owner, name, watched)


def main() -> None:
    from shoal.train.torch import parallel
    from shoal.train.torch.elastic_optimizer import ElasticOptimizer
    from shoal.train.worker import session
    from tests.train.scripts import audited

    for owner, name, point in (
        (session.Session, "boundary", "boundary"),
        (session.Session, "_open_tick", "exchange"),
        (parallel.AdaptiveDataParallel, "forward", "forward"),
        (parallel, "_reduce", "reduction"),
        (ElasticOptimizer, "step", "optimizer"),
        (session.Session, "_flush", "flush"),
        (session.Session, "_begin", "begin"),
        (session, "sync_state", "sync"),
        (parallel.AdaptiveDataParallel, "rebuild", "rebuild"),
    ):
        _watch(owner, name, point)
    audited.main()


if __name__ == "__main__":
    main()
