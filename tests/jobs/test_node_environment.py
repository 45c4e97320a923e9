"""Environments as a node builds them, on top of the Python that Ray runs with."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.jobs.scripts import node_environment
from shoal.jobs.scripts.node_environment import BuildError, ensure
from tests.jobs.repository import wheel

_USES = "import shoaltest, ray, sys; print(shoaltest.VALUE, sys.prefix)"


@pytest.fixture
def support(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The support files of a job whose package is in a directory."""
    monkeypatch.setenv("SHOAL_ENVIRONMENTS", str(tmp_path / "environments"))
    files = tmp_path / "support" / "environment"
    files.mkdir(parents=True)
    index = wheel(tmp_path / "index").parent
    (files / "requirements.txt").write_text(f"--no-index\n--find-links {index}\nshoaltest\nclick\n")
    spec = {"digest": "d", "main": "requirements.txt", "source": "requirements.txt"}
    (files.parent / "job.json").write_text(json.dumps({"shadowed": [], "environment": spec}))
    return files.parent


def spec_of(support: Path) -> dict[str, str]:
    spec = node_environment.read_job(support)["environment"]
    assert isinstance(spec, dict)
    return spec


@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_only_what_is_missing_is_installed_and_ray_is_shared(
    support: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installer: str
) -> None:
    if installer == "uv" and shutil.which("uv") is None:
        pytest.skip("uv is not installed")
    if installer == "pip":
        monkeypatch.setenv("PATH", "/usr/bin:/bin")
        monkeypatch.setenv("HOME", str(tmp_path))
    built = ensure(spec_of(support), support)
    assert (built.directory / "lock.txt").read_text() == "shoaltest==1.0\n"
    used = subprocess.run([built.python, "-c", _USES], capture_output=True, text=True, check=True)
    assert used.stdout.split() == ["6", str(built.directory / "env")]
    assert any(package.startswith("ray==") for package in built.packages)


def test_processes_that_start_together_build_once(support: Path) -> None:
    program = "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1])\n" + (
        "import node_environment as n; s = Path(sys.argv[2])\n"
        "print(n.ensure(n.read_job(s)['environment'], s, progress=print).python)"
    )
    scripts = str(Path(node_environment.__file__).parent)
    command = [sys.executable, "-c", program, scripts, str(support)]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)
        for _ in range(3)
    ]
    printed = [process.communicate(timeout=120)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    assert sum("building the environment" in text for text in printed) == 1
    assert len({text.splitlines()[-1] for text in printed}) == 1


def test_a_failure_has_the_last_lines_of_the_installer(support: Path) -> None:
    (support / "environment" / "requirements.txt").write_text("--no-index\nno-such-package\n")
    with pytest.raises(BuildError, match="no-such-package"):
        ensure(spec_of(support), support)
