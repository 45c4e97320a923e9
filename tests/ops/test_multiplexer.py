"""Sessions in a tmux whose server is older than the cluster, from what arrives in them."""

from __future__ import annotations

import os
from pathlib import Path

from shoal.ops import multiplexer
from shoal.remote.local_runner import LocalRunner

# Starts what it is told to as a server does that has been there for long: in its own environment.
OLD_TMUX = """#!/bin/sh
shift 2
exec env -i HOME="$HOME" PATH=/usr/bin:/bin "$@" < /dev/null
"""


async def test_a_session_is_known_to_use_its_cluster_and_finds_its_ray(tmp_path: Path) -> None:
    program = tmp_path / "tmux"
    program.write_text(OLD_TMUX)
    program.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    runner = LocalRunner(tmp_path, {"HOME": str(tmp_path), "PATH": path})
    env = {"SHOAL_IN_USE": "192.0.2.10:6379", "RAY_ADDRESS": "192.0.2.10:6379 it's"}
    command = "env > found"
    await multiplexer.start_detached(runner, "tmux", command, env, node="head")
    found = (tmp_path / "found").read_text().splitlines()
    for name, value in {**env, "PATH": path}.items():
        assert f"{name}={value}" in found
