"""What the driver of a sweep makes of the outcomes of its tasks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from shoal.jobs.sweep import driver
from shoal.jobs.sweep.journal import Journal, read_results
from shoal.jobs.sweep.sweep_spec import SweepSpec

ray = pytest.importorskip("ray")


class Tasks:
    """Instead of Ray: tasks that have ended as soon as they are submitted. `lost` says how often
    the task of a run is lost before it succeeds."""

    def __init__(self, lost: dict[int, int]) -> None:
        self.lost = lost
        self.count = 0

    def remote(self, request: dict[str, Any]) -> tuple[int, int]:
        self.count += 1
        return self.count, request["run"]

    def get(self, refs: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
        for _, run in refs:
            if self.lost.get(run, 0) > 0:
                if len(refs) == 1:
                    self.lost[run] -= 1
                raise ray.exceptions.WorkerCrashedError
        return [
            {
                "run": run,
                "status": "ok",
                "seconds": 1.0,
                "output": b"",
                "archive": b"",
                "chunks": [],
            }
            for _, run in refs
        ]


@pytest.mark.parametrize("losses", [0, 2, 4])
def test_a_lost_run_is_repeated_without_the_others_of_its_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, losses: int
) -> None:
    tasks = Tasks({7: losses})
    monkeypatch.setattr(ray, "get", tasks.get)
    monkeypatch.setattr(ray, "wait", lambda refs, **_: (refs, []))
    monkeypatch.setattr(driver.Driver, "_usage", lambda self: (1, 1))
    spec = SweepSpec("s", "run.py").with_params([{"x": x} for x in range(120)])
    running = driver.Driver(spec, Journal(tmp_path))
    monkeypatch.setattr(running, "_task", tasks)
    assert running.run() == ""
    results = read_results(tmp_path)
    assert len(results) == 120
    assert tasks.count == 120 + min(losses, 3)
    assert results[7]["status"] == ("lost" if losses > 3 else "ok")
    assert running.failed == (losses > 3)


_SEND = """
import sys
from pathlib import Path
from ray import cloudpickle
from shoal.jobs.sweep import driver, run_task
from shoal.jobs.sweep.journal import Journal
from shoal.jobs.sweep.sweep_spec import SweepSpec
driver.Driver(SweepSpec("s", "run.py"), Journal(Path(sys.argv[1])))
sys.stdout.buffer.write(cloudpickle.dumps(run_task.execute))
"""
_RECEIVE = """
import json, sys
sys.modules["shoal"] = None
from ray import cloudpickle
execute = cloudpickle.loads(sys.stdin.buffer.read())
request = {
    "sweep": "s", "argv": ["run.py"], "code": sys.argv[1], "time_limit_s": None,
    "output_bytes": 100, "artifact_bytes": 100,
}
print([execute({**request, "run": run})["output"] for run in (1, 2)])
"""


def test_the_task_of_a_run_needs_no_shoal_on_the_node(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text("import os; print(os.environ['SHOAL_RUN'])")

    def python(program: str, content: bytes = b"") -> bytes:
        command = [sys.executable, "-c", program, str(tmp_path)]
        return subprocess.run(
            command, input=content, stdout=subprocess.PIPE, check=True, timeout=120
        ).stdout

    assert python(_RECEIVE, python(_SEND)).decode().strip() == "[b'1\\n', b'2\\n']"
