"""What lies in the directory of an installation, by the scripts that put it there."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.core.errors import ConfigError
from shoal.ops import interactive_nodes
from shoal.ops.install_ray import RaySource
from shoal.ray_runtime.ray_env import Installation
from shoal.spec.cluster_spec import ClusterSpec
from tests.specs import cluster


@pytest.fixture
def there(tmp_path: Path) -> Path:
    directory = tmp_path / "it's here"
    directory.mkdir()
    return directory


def run(command: str) -> str:
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def switch(there: Path, name: str) -> Path:
    """Move to an environment of this name, which is made first."""
    program = there / "ray-envs" / name / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.symlink_to(sys.executable)
    run(Installation(str(there)).switch_command(name))
    return program.parent


def test_an_environment_from_which_ray_runs_outlives_two_newer_ones(there: Path) -> None:
    raylet = switch(there, "v1") / "raylet"
    shutil.copy(shutil.which("sleep") or "", raylet)
    running = subprocess.Popen([raylet, "9999"])
    try:
        for name in ("v2", "v3"):
            switch(there, name)
        assert sorted(p.name for p in (there / "ray-envs").iterdir()) == ["v1", "v2", "v3"]
    finally:
        running.kill()
        running.wait()
    switch(there, "v4")
    assert sorted(p.name for p in (there / "ray-envs").iterdir()) == ["v3", "v4"]


def started_with(there: Path, code: Path) -> ClusterSpec:
    """The cluster as `start_ray` brings it up; its code is sent and set up here."""
    spec = interactive_nodes.with_workers(cluster(), Installation(str(there)), str(code), 1)
    ((target, source),) = spec.files.mounts.items()
    shutil.copytree(source, target, dirs_exist_ok=True)
    for command in spec.head_setup.setup_commands:
        run(command)
    return spec


def test_workers_import_the_code_that_was_sent_last_and_nothing_of_before(
    there: Path, tmp_path: Path
) -> None:
    switch(there, "v1")
    old, new = tmp_path / "old", tmp_path / "new"
    (old / "model").mkdir(parents=True)
    (old / "model" / "__init__.py").write_text("VERSION = 1")
    new.mkdir()
    (new / "model.py").write_text("VERSION = 2")
    quoted = str(there / "setup-env.sh").replace("'", "'\\''")
    python = shlex.quote(sys.executable)
    ask = f". '{quoted}'; {python} -c 'import model; print(model.VERSION)'"
    first = started_with(there, old)
    assert run(ask) == "1"
    assert started_with(there, new).files.mounts != first.files.mounts
    assert run(ask) == "2"
    assert len(list((there / "worker_code").glob("code-*"))) == 1
    assert started_with(there, old).files.mounts == first.files.mounts
    assert run(ask) == "1"


@pytest.mark.parametrize(
    ("git", "requirement"),
    [
        ("releases/2.9.0", "git+https://github.com/ray-project/ray.git@releases/2.9.0"),
        ("https://host/ray.git@v1", "git+https://host/ray.git@v1"),
        ("https://user@host/ray.git", "git+https://user@host/ray.git"),
        ("ssh://git@host/ray.git@a/b", "git+ssh://git@host/ray.git@a/b"),
    ],
)
def test_a_git_revision_is_told_from_its_repository(git: str, requirement: str) -> None:
    assert RaySource(git=git).requirement == f"ray[default] @ {requirement}#subdirectory=python"


def test_a_repository_without_a_url_is_refused_with_one() -> None:
    with pytest.raises(ConfigError) as caught:
        RaySource(git="git@github.com:ray-project/ray.git")
    assert "ssh://git@HOST/ray.git@REVISION" in caught.value.fix
