"""The probe of a node's container, with a stand-in for docker."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from shoal.remote.scripts import read_script

# The daemon answers from the third call on; each call leaves a line.
DOCKER = """#!/bin/sh
echo "$1" >> "$HOME/calls"
if [ "$(wc -l < "$HOME/calls")" -lt 4 ]; then
  echo "Cannot connect to the Docker daemon. Is the docker daemon running?" >&2
  exit 1
fi
case $1 in
  container) echo "false a-digest" ;;
esac
"""


@pytest.mark.parametrize(("had_container", "expected"), [(True, "false a-digest\n"), (False, "\n")])
def test_the_daemon_of_a_host_with_a_container_is_waited_for(
    tmp_path: Path, had_container: bool, expected: str
) -> None:
    docker = tmp_path / "bin/docker"
    docker.parent.mkdir()
    docker.write_text(DOCKER)
    docker.chmod(0o755)
    (tmp_path / ".shoal").mkdir()
    if had_container:
        (tmp_path / ".shoal/container").write_text("docker\n")
    script = read_script("shoal.bootstrap.scripts", "probe_container.sh")
    done = subprocess.run(
        ["sh", "-c", script, "probe", "docker", "box", "a-label", "true"],
        env={"HOME": str(tmp_path), "PATH": f"{docker.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert done.stdout == expected
