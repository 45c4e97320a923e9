from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("ray")


def test_a_cluster_that_does_not_answer_ends_the_program_with_one_message() -> None:
    program = "from shoal.train.job import launch; launch._give_up('10.0.0.1:6379')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    error = json.loads(done.stdout)
    assert error["kind"] == "error"
    assert "10.0.0.1:6379" in error["what"]
    assert error["why"]
