"""Invalid input on the command line: an error message and exit code, never a stack trace."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.cli.shoal_command import SHOAL, Home

pytestmark = pytest.mark.processes

INVALID_FILES = {
    "empty": (b"", "is empty"),
    "list": (b"- up\n", "must be a mapping"),
    "binary": (b"\x7fELF\x00\x01\x02", "binary"),
    "cyclic": (b"a: &a [*a]\n", "contains itself"),
    "large": (b"setup_commands:\n" + b"  - echo and so on and on\n" * 400_000, "larger than"),
}


@pytest.mark.parametrize("name", INVALID_FILES)
def test_an_invalid_file_is_reported_in_one_line(home: Home, tmp_path: Path, name: str) -> None:
    content, message = INVALID_FILES[name]
    (tmp_path / "c.yaml").write_bytes(content)
    done = home.shoal("up", "c.yaml", cwd=tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: c.yaml") and message in line


def test_a_missing_file_is_reported_in_one_line(home: Home, tmp_path: Path) -> None:
    done = home.shoal("up", "none.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines() == ["error: none.yaml  no such file"]


def test_all_errors_are_reported_at_once_with_their_lines(home: Home, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "provider: {type: embedded}\n"
        "available_node_types:\n"
        "  gpu:\n"
        "    min_workers: -1\n"
        "    max_worker: 2\n"
        "head_node_type: gppu\n"
    )
    done = home.shoal("up", "c.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "error: 3 problems, nothing was changed",
        "c.yaml:4  available_node_types.gpu.min_workers  must be 0 or more, not -1",
        "c.yaml:5  available_node_types.gpu.max_worker  is not a known key; "
        "did you mean 'max_workers'?",
        "c.yaml:6  head_node_type  'gppu' is not in available_node_types; did you mean 'gpu'?",
    ]
    assert home.instance_ids() == set()


def test_an_error_is_printed_as_json(home: Home, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("provider: {type: cloud9}\n")
    done = home.shoal("up", "c.yaml", "--json", cwd=tmp_path)
    error = home.last_event(done)
    assert (error["event"], error["class"], error["exit_code"]) == ("error", "config", 2)
    assert "cloud9" in error["what"]
    assert done.stderr == ""


def test_a_misspelt_command_suggests_the_likely_one(home: Home) -> None:
    done = home.shoal("stats")
    assert done.returncode == 2
    assert "Did you mean 'status'?" in done.stderr


@pytest.mark.parametrize("command", [("status",), ("down", "--yes"), ("exec", "true")])
def test_a_command_without_a_cluster_says_how_to_start_one(
    home: Home, command: tuple[str, ...]
) -> None:
    done = home.shoal(*command)
    assert done.returncode == 3
    assert "no cluster is up" in done.stderr
    assert "fix: start one on this machine: shoal up\n" in done.stderr


def test_an_unknown_name_is_not_taken_for_a_file(home: Home) -> None:
    done = home.shoal("status", "missing")
    assert done.returncode == 3
    assert "unknown cluster: 'missing'" in done.stderr


def test_down_of_a_cluster_that_is_not_up_succeeds(home: Home, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("cluster_name: calm\nprovider: {type: embedded}\n")
    done = home.shoal("down", "c.yaml", "--yes", cwd=tmp_path)
    assert done.returncode == 0
    assert "no nodes to terminate" in done.stderr
    assert home.shoal("status", "c.yaml", cwd=tmp_path).returncode == 3


def test_exec_without_a_command_is_a_usage_error(home: Home, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("provider: {type: embedded}\n")
    done = home.shoal("exec", "c.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert "No command to run on c.yaml" in done.stderr


def test_help_lists_every_command_and_each_has_help(home: Home) -> None:
    help = home.shoal("--help").stdout
    names = (
        *("up", "down", "status", "exec", "submit", "attach", "dashboard", "monitor", "rsync-up"),
        *("rsync-down", "stop", "start", "get-head-ip", "get-worker-ips", "ssh-config", "ls"),
        *("config", "completion"),
    )
    for name in names:
        assert f"  {name} " in help
        assert home.shoal(name, "--help").returncode == 0


@pytest.mark.simcloud
def test_a_read_only_home_is_named_with_a_fix(tmp_path: Path) -> None:
    env = {k: v for k, v in os.environ.items() if k not in ("SHOAL_HOME", "XDG_CACHE_HOME")}
    mount = 'mount -t tmpfs -o ro none "$HOME" && exec "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mount, "sh", SHOAL, "up"],
        env={**env, "HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert f"cannot use {tmp_path}/.cache" in done.stderr
    assert "Read-only file system" in done.stderr
    assert "SHOAL_HOME" in done.stderr
    assert "internal error" not in done.stderr
