"""Environments as a node builds them, on top of the Python that Ray runs with."""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.jobs.scripts import node_environment
from shoal.jobs.scripts.node_environment import BuildError, ensure
from tests.jobs.repository import wheel

pytestmark = pytest.mark.processes

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


@pytest.fixture(params=["uv", "pip"])
def installer(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """Which program installs packages: uv if it is beside the Python of Ray, on PATH, or in the
    user's home."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    if request.param == "pip":
        without_uv = tmp_path / "ray"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(without_uv)], check=True)
        site = next(without_uv.glob("lib/python3*/site-packages"))
        (site / "ray.pth").write_text(sysconfig.get_path("purelib") + "\n")
        monkeypatch.setattr(sys, "executable", str(without_uv / "bin" / "python"))
    return str(request.param)


def test_only_what_is_missing_is_installed_and_ray_is_shared(support: Path, installer: str) -> None:
    built = ensure(spec_of(support), support)
    assert (built.directory / "lock.txt").read_text() == "shoaltest==1.0\n"
    used = subprocess.run([built.python, "-c", _USES], capture_output=True, text=True, check=True)
    assert used.stdout.split() == ["6", str(built.directory / "env")]
    assert any(package.startswith("ray==") for package in built.packages)
    log = (built.directory / "build.log").read_text()
    assert ("Successfully installed" in log) == (installer == "pip")


def test_the_dependencies_and_the_index_of_a_project_are_used(
    support: Path, installer: str, tmp_path: Path
) -> None:
    with serve(tmp_path / "index") as url:
        (support / "environment" / "pyproject.toml").write_text(
            '[project]\nname = "p"\nversion = "1"\ndependencies = ["shoaltest>=1", "click"]\n'
            f'[[tool.uv.index]]\nurl = "{url}"\ndefault = true\n'
        )
        built = ensure({**spec_of(support), "main": "pyproject.toml"}, support)
    assert (built.directory / "lock.txt").read_text() == "shoaltest==1.0\n"


@pytest.mark.parametrize(
    ("line", "flags"),
    [
        ("--pre", ["--prerelease", "allow"]),
        ("--trusted-host=a.b", ["--allow-insecure-host", "a.b"]),
        ("--trusted-host a.b  # ours", ["--allow-insecure-host", "a.b"]),
        ("--index-url https://a.b/?k=v=w", []),
        ("pretty", []),
    ],
)
def test_uv_gets_flags_for_options_that_it_does_not_read(
    tmp_path: Path, line: str, flags: list[str]
) -> None:
    (tmp_path / "requirements.txt").write_text(f"idna\n{line}\n")
    assert list(node_environment._uv_flags(tmp_path)) == flags
    urls = [value for _, value in node_environment._options(tmp_path, ["--index-url"])]
    assert urls == (["https://a.b/?k=v=w"] if "index" in line else [])


@contextlib.contextmanager
def serve(directory: Path) -> Iterator[str]:
    """A package index at a local address, with the wheels of a directory."""
    (project := directory / "pages" / "shoaltest").mkdir(parents=True)
    for each in directory.glob("*.whl"):
        shutil.copy(each, project)
    handler = functools.partial(SilentHandler, directory=str(project.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


class SilentHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


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
