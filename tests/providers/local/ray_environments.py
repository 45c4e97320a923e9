"""Places where a host may have Ray, other than on the PATH of a login shell. Each has the real Ray
of the tests, or a stand-in that starts at once."""

from __future__ import annotations

import shlex
import sys
import sysconfig
from dataclasses import dataclass

from tests.simcloud.hosts import Host

_SITE_PACKAGES = sysconfig.get_path("purelib")
_VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
_BASE_PYTHON = f"{sys.base_prefix}/bin/{_VERSION}"

# Runs the real `ray`, unless there is a file that asks for processes that only look like Ray's.
# Those name their interpreter as a raylet does, and listen nowhere.
_RAY = """
import os, pathlib, subprocess, sys
home = pathlib.Path.home()
if not (home / "stand-in").exists():
    from ray.scripts.scripts import main
    sys.exit(main())
with (home / "ray-calls").open("a") as calls:
    print(*sys.argv[1:], file=calls)
for name in ("gcs_server", "raylet") if sys.argv[1] == "start" else ():
    (home / name).symlink_to("/usr/bin/python3")
    worker = f"--python_worker_command={sys.executable} setup_worker.py"
    argv = [str(home / name), "-c", "import time; time.sleep(9999)", worker]
    subprocess.Popen(argv, start_new_session=True, stdout=-3, stderr=-3)
"""


@dataclass(frozen=True)
class RayEnvironment:
    """A way to have Ray: shell text that installs it, what goes before `ray start`, the login shell
    of the user, and the interpreter that Ray then runs with."""

    install: str
    start: str
    python: str
    shell: str = "/bin/bash"

    async def prepare(self, host: Host, *, stand_in: bool = False) -> None:
        await host.run(f"usermod -s {self.shell} ubuntu")
        if stand_in:
            await host.run("touch ~/stand-in", user="ubuntu")
        (await host.run(self.install, user="ubuntu")).require("installing Ray")


def _program(path: str, *lines: str) -> str:
    text = "\n".join(lines)
    return f"mkdir -p $(dirname {path}) && cat > {path} <<'EOF' && chmod +x {path}\n{text}\nEOF\n"


def virtualenv(directory: str) -> str:
    """Shell text that makes a virtualenv with the Ray of the tests in it."""
    return (
        f"{_BASE_PYTHON} -m venv --without-pip {directory} && "
        f"echo {_SITE_PACKAGES} > {directory}/lib/{_VERSION}/site-packages/ray.pth\n"
        + _program(f"{directory}/bin/ray", f"#!{directory}/bin/python", _RAY)
    )


_CONDA = """
conda() {
  export PATH="$HOME/conda/envs/$2/bin:$PATH" CONDA_DEFAULT_ENV=$2
}
"""
_HOME = "/home/ubuntu"

RAY_ENVIRONMENTS = {
    "absolute path": RayEnvironment(
        virtualenv(f"{_HOME}/venv"),
        f"{_HOME}/venv/bin/",
        f"{_HOME}/venv/bin/python",
        shell="/usr/bin/zsh",
    ),
    "source activate": RayEnvironment(
        virtualenv(f"{_HOME}/env"),
        "source ~/env/bin/activate && ",
        f"{_HOME}/env/bin/python",
        shell="/usr/bin/fish",
    ),
    "conda function": RayEnvironment(
        virtualenv(f"{_HOME}/conda/envs/ml") + f"echo {shlex.quote(_CONDA)} >> ~/.bashrc",
        "conda activate ml && ",
        f"{_HOME}/conda/envs/ml/bin/python",
        shell="/bin/dash",
    ),
    # The script of older versions of conda, which Ray's own examples use.
    "conda script": RayEnvironment(
        virtualenv(f"{_HOME}/anaconda3/envs/ml")
        + _program("~/anaconda3/bin/activate", 'PATH="$HOME/anaconda3/envs/$1/bin:$PATH"')
        + "echo 'export PATH=~/anaconda3/bin:$PATH' >> ~/.bashrc",
        "source activate ml && ",
        f"{_HOME}/anaconda3/envs/ml/bin/python",
    ),
    "conda run": RayEnvironment(
        virtualenv(f"{_HOME}/conda/envs/ml")
        + _program(
            "~/conda/bin/conda", "#!/bin/sh", "shift 3", 'PATH=~/conda/envs/ml/bin:$PATH "$@"'
        ),
        "~/conda/bin/conda run -n ml ",
        f"{_HOME}/conda/envs/ml/bin/python",
    ),
    # `uv run` runs a program with the project's virtualenv first on the PATH.
    "uv run": RayEnvironment(
        virtualenv(f"{_HOME}/.venv")
        + _program("~/.local/bin/uv", "#!/bin/sh", "shift", 'PATH=~/.venv/bin:$PATH exec "$@"'),
        "PATH=$PATH:~/.local/bin; uv run ",
        f"{_HOME}/.venv/bin/python",
    ),
    # A shim, as pyenv makes them, in front of a `pip install --user`.
    "pyenv and pip --user": RayEnvironment(
        f"mkdir -p ~/.local/lib/{_VERSION}/site-packages && "
        f"echo {_SITE_PACKAGES} > ~/.local/lib/{_VERSION}/site-packages/ray.pth\n"
        + _program("~/.local/bin/ray", f"#!/usr/bin/env {_VERSION}", _RAY)
        + _program("~/.pyenv/shims/ray", "#!/usr/bin/env bash", 'exec ~/.local/bin/ray "$@"'),
        f"PATH={sys.base_prefix}/bin:$PATH ~/.pyenv/shims/",
        _BASE_PYTHON,
    ),
}
