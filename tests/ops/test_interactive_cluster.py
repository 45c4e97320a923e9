"""The installation directory of an interactive cluster, and the code that its workers import."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.core.errors import ConfigError
from shoal.ops import interactive_cluster
from shoal.ops.install_ray import RaySource
from shoal.ray_runtime.ray_env import Installation
from shoal.spec.cluster_spec import ClusterSpec
from tests.specs import cluster


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    directory = tmp_path / "it's here"
    directory.mkdir()
    return directory


def run(command: str) -> str:
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def switch(directory: Path, name: str) -> Path:
    """Create an environment of this name and switch to it."""
    program = directory / "ray-envs" / name / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.symlink_to(sys.executable)
    run(Installation(str(directory)).switch_command(name))
    return program.parent


def test_an_environment_with_a_running_ray_is_not_removed(directory: Path) -> None:
    raylet = switch(directory, "v1") / "raylet"
    shutil.copy(shutil.which("sleep") or "", raylet)
    running = subprocess.Popen([raylet, "9999"])
    try:
        for name in ("v2", "v3"):
            switch(directory, name)
        assert sorted(p.name for p in (directory / "ray-envs").iterdir()) == ["v1", "v2", "v3"]
    finally:
        running.kill()
        running.wait()
    switch(directory, "v4")
    assert sorted(p.name for p in (directory / "ray-envs").iterdir()) == ["v3", "v4"]


def started_with(directory: Path, code: Path) -> ClusterSpec:
    """The spec that `start_ray` brings up, after copying the code and running the setup."""
    spec = interactive_cluster.spec_with_code(cluster(), Installation(str(directory)), str(code), 1)
    ((target, source),) = spec.files.mounts.items()
    shutil.copytree(source, target, dirs_exist_ok=True)
    for command in spec.head_setup.setup_commands:
        run(command)
    return spec


def test_workers_import_only_the_code_that_was_copied_last(directory: Path, tmp_path: Path) -> None:
    switch(directory, "v1")
    old, new = tmp_path / "old", tmp_path / "new"
    (old / "model").mkdir(parents=True)
    (old / "model" / "__init__.py").write_text("VERSION = 1")
    new.mkdir()
    (new / "model.py").write_text("VERSION = 2")
    quoted = str(directory / "setup-env.sh").replace("'", "'\\''")
    python = shlex.quote(sys.executable)
    command = f". '{quoted}'; {python} -c 'import model; print(model.VERSION)'"
    first = started_with(directory, old)
    assert run(command) == "1"
    assert started_with(directory, new).files.mounts != first.files.mounts
    assert run(command) == "2"
    assert len(list((directory / "worker_code").glob("code-*"))) == 1
    assert started_with(directory, old).files.mounts == first.files.mounts
    assert run(command) == "1"


@pytest.mark.parametrize(
    ("git", "requirement"),
    [
        ("releases/2.9.0", "git+https://github.com/ray-project/ray.git@releases/2.9.0"),
        ("https://host/ray.git@v1", "git+https://host/ray.git@v1"),
        ("https://user@host/ray.git", "git+https://user@host/ray.git"),
        ("ssh://git@host/ray.git@a/b", "git+ssh://git@host/ray.git@a/b"),
    ],
)
def test_a_git_source_is_a_revision_or_a_repository(git: str, requirement: str) -> None:
    assert RaySource(git=git).requirement == f"ray[default] @ {requirement}#subdirectory=python"


def test_a_repository_that_is_not_a_url_is_an_error_with_a_fix() -> None:
    with pytest.raises(ConfigError) as caught:
        RaySource(git="git@github.com:ray-project/ray.git")
    assert "ssh://git@HOST/ray.git@REVISION" in caught.value.fix
