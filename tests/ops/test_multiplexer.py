"""The environment of a tmux session whose server is older than the cluster."""

from __future__ import annotations

import os
from pathlib import Path

from shoal.ops import multiplexer
from shoal.remote.local_runner import LocalRunner

# Like an old server, it runs the command in its own environment, not in the caller's.
OLD_TMUX = """#!/bin/sh
shift 2
exec env -i HOME="$HOME" PATH=/usr/bin:/bin "$@" < /dev/null
"""


async def test_a_session_has_the_variables_of_its_cluster(tmp_path: Path) -> None:
    program = tmp_path / "tmux"
    program.write_text(OLD_TMUX)
    program.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    runner = LocalRunner(tmp_path, {"HOME": str(tmp_path), "PATH": path})
    env = {"SHOAL_IN_USE": "192.0.2.10:6379", "RAY_ADDRESS": "192.0.2.10:6379 it's"}
    command = "env > variables"
    await multiplexer.start_detached(runner, "tmux", command, env, node="head")
    variables = (tmp_path / "variables").read_text().splitlines()
    for name, value in {**env, "PATH": path}.items():
        assert f"{name}={value}" in variables
