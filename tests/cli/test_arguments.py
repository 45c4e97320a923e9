"""Errors in the command line that are found without a cluster, and shell completion."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from shoal.spec import Overrides, default_embedded, to_json
from tests.cli.shoal_command import SHOAL, Home

pytestmark = pytest.mark.processes

USAGE_ERRORS = {
    ("exec", "a", "b", "c"): "Quote the command",
    ("exec", "--nodes", "n.txt", "c.yaml", "true"): "Use CLUSTER or --nodes",
    ("exec", "true", "--screen", "--tmux"): "Use --screen or --tmux, not both",
    ("exec", "true", "-p", "http"): "'http' is not a port",
    ("exec", "true", "-p", "8080:70000"): "not between 1 and 65535",
    ("exec", "true", "--run-env", "vm"): "'vm' is not one of",
    ("attach", "--new"): "--new requires --screen or --tmux",
    ("submit", "cluster"): "No script to run on cluster",
    ("submit", "x.py", "--args", "a", "--", "b"): "Use --args or arguments after --",
    ("rsync-up", "a", "b", "c", "d"): "Expected [CLUSTER]",
    ("status", "--key-file", "k"): "require --nodes",
    ("up", "--no-restart", "--restart-only"): "not both",
    ("up", "demo", "--max-workers", "-3"): "-3 is not in the range x>=0",
    ("up", "--min-workers", "-1"): "-1 is not in the range x>=0",
    ("plan", "--max-workers", "-1"): "-1 is not in the range x>=0",
    ("prices", "--gpus", "-1"): "-1 is not in the range x>=0",
    ("simulate", "c.yaml", "t.jsonl", "--boot", "-5"): "-5.0 is not in the range",
    ("simulate", "c.yaml", "t.jsonl", "--failures", "2"): "2.0 is not in the range",
    ("simulate", "c.yaml", "t.jsonl", "--interruptions", "-1"): "-1.0 is not in the range",
    ("simulate", "c.yaml", "t.jsonl", "--interval", "0"): "0.0 is not in the range",
    ("down", "x", "--all"): "Use CLUSTER or --all",
    ("completion", "tcsh"): "'tcsh' is not one of",
}


@pytest.mark.parametrize("arguments", USAGE_ERRORS, ids=" ".join)
def test_a_usage_error_is_explained(home: Home, arguments: tuple[str, ...]) -> None:
    done = home.shoal(*arguments)
    assert done.returncode == 2
    assert USAGE_ERRORS[arguments] in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "name",
    ["rsync_up", "rsync_down", "get_head_ip", "get_worker_ips", "ssh_config", "submit", "attach"],
)
def test_rays_command_names_are_accepted(home: Home, name: str) -> None:
    done = home.shoal(name, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith("Usage: shoal")


@pytest.mark.parametrize(
    "command",
    [
        ("attach",),
        ("submit", "x.py"),
        ("rsync-up",),
        ("rsync-down",),
        ("get-head-ip",),
        ("get-worker-ips",),
        ("dashboard",),
        ("monitor",),
        ("stop", "--yes"),
        ("start", "-y"),
        ("ssh-config",),
    ],
    ids=" ".join,
)
def test_a_command_without_a_cluster_says_that_none_is_up(
    home: Home, command: tuple[str, ...]
) -> None:
    done = home.shoal(*command)
    assert done.returncode == 3
    assert "no cluster is up" in done.stderr


def test_a_nodes_file_is_validated_before_anything_is_done(home: Home, tmp_path: Path) -> None:
    (tmp_path / "n.txt").write_text("10.0.0.1\nnot an address\n")
    done = home.shoal("up", "--nodes", "n.txt", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: n.txt:2  'not an address' is not an address")


def completions(home: Home, typed: str, cwd: Path) -> list[str]:
    """The completions that bash would offer for this line."""
    words = typed.split(" ")
    env = {"COMP_WORDS": typed, "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(
        [SHOAL],
        env={**home.env, **env, "_SHOAL_COMPLETE": "bash_complete"},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=True,
    )
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


def record_cluster(home: Home, name: str) -> None:
    spec = default_embedded(Overrides(cluster_name=name)).spec
    (home.path / "clusters").mkdir()
    (home.path / "clusters" / f"{name}.json").write_text(json.dumps(to_json(spec)))


def test_verbose_shows_the_log_on_standard_error(home: Home) -> None:
    record_cluster(home, "lab")
    message = "INFO    shoal.ops.cluster_lookup: using the recorded spec of cluster lab"
    assert message in home.shoal("status", "lab", "-v").stderr
    assert home.shoal("status", "lab").stderr == ""


def test_commands_clusters_and_files_are_completed(home: Home, tmp_path: Path) -> None:
    record_cluster(home, "lab")
    (tmp_path / "large.yaml").touch()
    (tmp_path / "letter.txt").touch()
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "deep.yml").touch()
    assert completions(home, "shoal rsync", tmp_path) == ["rsync-up", "rsync-down"]
    assert completions(home, "shoal status l", tmp_path) == ["lab", "large.yaml"]
    assert completions(home, "shoal exec sub/", tmp_path) == ["sub/deep.yml"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_calls_shoal(home: Home, shell: str) -> None:
    done = home.shoal("completion", shell)
    assert f"_SHOAL_COMPLETE={shell}_complete" in done.stdout
