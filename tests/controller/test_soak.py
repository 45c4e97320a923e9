"""A cluster under random kills for a while: every task is done, nothing is left over, and the
journal tells the same story as the controller. Runs for SHOAL_SOAK_SECONDS, when that is set:
it is not yet steady enough to stand in everybody's way."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from pathlib import Path

import psutil
import pytest

from shoal.controller import report
from shoal.controller.journal import replay
from tests.cli.conftest import home_for_a_while
from tests.cli.shell import ray_daemons_of
from tests.controller.elastic import Elastic, until

SECONDS = float(os.environ.get("SHOAL_SOAK_SECONDS", "0"))

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(not SECONDS, reason="SHOAL_SOAK_SECONDS is not set"),
]

SEED = int(os.environ.get("SHOAL_SOAK_SEED", "7"))

WAVES = """
import ray, sys, time
ray.init(log_to_driver=False, logging_level="ERROR")

@ray.remote(num_cpus=1, max_retries=-1)
def work(n):
    time.sleep(0.5)
    return n

end, total = time.time() + float(sys.argv[1]), 0
while time.time() < end:
    total += len(ray.get([work.remote(n) for n in range(20)]))
print("finished", total, "of", total)
"""


def test_random_kills_lose_no_work_and_leave_nothing(tmp_path: Path) -> None:
    dice = random.Random(SEED)
    with home_for_a_while() as home:
        elastic = Elastic(home, tmp_path, {"waves": WAVES})
        elastic.up()
        program = elastic.start("waves", SECONDS)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            until(lambda: program.poll() is not None or bool(elastic.workers()), 90)
            _kill_something(elastic, dice)
            time.sleep(dice.uniform(2, 8))  # kills come at any moment, not at one we choose
        printed = program.communicate(timeout=180)[0]
        assert "finished" in printed, printed
        until(elastic.at_rest, 120)
        _assert_journal_agrees(elastic)


def _kill_something(elastic: Elastic, dice: random.Random) -> None:
    victim = dice.choice(["controller", "supervisor", "node"])
    with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
        if victim != "node":
            os.kill(elastic.pid(victim), signal.SIGKILL)
        elif workers := elastic.workers():
            for daemon in ray_daemons_of(dice.choice(workers)["id"]):
                daemon.kill()


def _assert_journal_agrees(elastic: Elastic) -> None:
    def agrees() -> bool:
        memory, unreadable = replay(elastic.control / "journal.jsonl")
        told = json.loads(json.dumps(report.remembered(memory), default=vars))
        state = elastic.state()
        return unreadable == 0 and all(told[key] == state[key] for key in ("nodes", "gone"))

    until(agrees, 20)
