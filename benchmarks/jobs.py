"""Submits a job again after one file of a 5 MiB repository has changed, on a warm embedded cluster
of five nodes, against `ray job submit` of the same, alternating; and with an environment that the
nodes have already, against the same job without."""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.cli.conftest import temporary_home
from tests.cli.shoal_command import SHOAL, Home
from tests.jobs.repository import repository

from benchmarks.report import report
from shoal.core.addresses import split_host_port
from shoal.ray_runtime.ray_start import HeadPorts

WORKERS = 4
ROUNDS = 5
FILES = 320
FILE_BYTES = 16384
MAX_RATIO = 1.2
MAX_ENVIRONMENT_SECONDS = 0.5
TIMEOUT_SECONDS = 300.0
COMMAND = ["--", "python", "-c", "pass"]
PACKAGE = "humanize"  # which the Python of the nodes lacks


def main() -> None:
    with temporary_home() as home, tempfile.TemporaryDirectory() as directory:
        code = _code(Path(directory) / "code")
        up = home.shoal("up", "--yes", "--min-workers", str(WORKERS), timeout=TIMEOUT_SECONDS)
        assert up.returncode == 0, up.stderr
        env = {**home.env, **_ray_env(home)}
        shoal = [SHOAL, "job", "submit", "--code", str(code)]
        commands = {
            "ray job submit": [
                str(Path(sys.executable).parent / "ray"), "job", "submit",
                "--working-dir", str(code), *COMMAND,
            ],
            "shoal job submit": [*shoal, *COMMAND],
            "shoal job submit --requirements": [
                *shoal, "--requirements", str(code / "requirements.txt"),
                "--", "python", "-c", f"import {PACKAGE}",
            ],
        }  # fmt: skip
        seconds: dict[str, list[float]] = {name: [] for name in commands}
        for turn in range(ROUNDS + 1):
            for name, command in commands.items():
                (code / "module_0.py").write_text(f"VALUE = {turn}  # {name}\n")
                began = time.perf_counter()
                subprocess.run(
                    command, env=env, check=True, capture_output=True, timeout=TIMEOUT_SECONDS
                )
                if turn:  # the first one warms up
                    seconds[name].append(time.perf_counter() - began)
    for name, values in seconds.items():
        print(f"{name}: {statistics.median(values):.2f} s, {[f'{v:.2f}' for v in values]}")
    ray, without, with_packages = (statistics.median(values) for values in seconds.values())
    added = with_packages - without
    print(f"an unchanged environment adds {added:.2f} s", flush=True)
    report(
        "jobs",
        value=without,
        unit="s",
        peer=ray,
        limit=None,
        ratio=without / ray,
        bar=f"a changed file at most {MAX_RATIO} times ray job submit; an unchanged environment "
        f"adds under {MAX_ENVIRONMENT_SECONDS} s",
        passed=without / ray <= MAX_RATIO and added < MAX_ENVIRONMENT_SECONDS,
    )


def _code(directory: Path) -> Path:
    """A repository of 5 MiB that does not compress."""
    repository(directory, requirements__txt=f"{PACKAGE}\n")
    numbers = random.Random(1)
    for n in range(FILES):
        text = f"VALUE = {n}\n# " + numbers.randbytes(FILE_BYTES // 2).hex() + "\n"
        (directory / f"module_{n}.py").write_text(text)
    return directory


def _ray_env(home: Home) -> dict[str, str]:
    """The environment of `ray job submit` for the cluster of this home."""
    printed = home.shoal("env").stdout
    script = f"{printed}\nenv -0"
    done = subprocess.run(["sh", "-c", script], env=home.env, capture_output=True, check=True)
    variables = dict(v.split("=", 1) for v in os.fsdecode(done.stdout).split("\0") if "=" in v)
    found = {name: value for name, value in variables.items() if name.startswith("RAY_")}
    host, port = split_host_port(found.pop("RAY_ADDRESS"))
    # The dashboard itself: Ray would have to connect to the cluster first to find it.
    return {**found, "RAY_API_SERVER_ADDRESS": f"http://{host}:{HeadPorts(int(port)).dashboard}"}


if __name__ == "__main__":
    main()
