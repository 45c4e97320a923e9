"""`shoal sweep` on one shared embedded cluster, with real scripts: argparse, Hydra and Sacred."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cli.shoal_command import SHOAL, Home, daemons_of
from tests.polling import alive, until

pytestmark = pytest.mark.ray

YAML = """
cluster_name: sweeps
max_workers: 2
provider: {type: embedded}
available_node_types:
  head: {resources: {CPU: 2}}
  late: {resources: {CPU: 2, slot: 2}, min_workers: 0, max_workers: 1}
head_node_type: head
"""

TRAIN = """
import argparse, ctypes, json, sys, time
from pathlib import Path
from helper import half
parser = argparse.ArgumentParser()
parser.add_argument("--x", type=int)
parser.add_argument("--mode", default="")
parser.add_argument("--gate", default="")
arguments = parser.parse_args()
print("started", arguments.x, flush=True)
if arguments.gate:
    gate = Path(arguments.gate)
    with (gate / "started").open("a") as log:
        log.write(f"{arguments.x}\\n")
    while arguments.x > 1 and not (gate / "open").exists():
        time.sleep(0.05)
if arguments.mode == "crash":
    ctypes.string_at(0)
if arguments.mode == "fail":
    raise ValueError("no such data")
if arguments.mode == "hang":
    time.sleep(600)
if arguments.mode.startswith("print"):
    for _ in range(20_000 if arguments.mode == "print" else 1_100_000):
        print("y" * 999)
Path("model.txt").write_text(f"weights {arguments.x}")
print(json.dumps({"loss": half(arguments.x)}))
"""

HYDRA = """
import json
import hydra
from omegaconf import DictConfig

@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(config: DictConfig) -> None:
    print(json.dumps({"area": config.model.width * config.height}))

if __name__ == "__main__":
    main()
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("project")
    (path / "train.py").write_text(TRAIN)
    (path / "helper.py").write_text("def half(x): return x / 2\n")
    (path / "cluster.yaml").write_text(YAML)
    return path


@pytest.fixture(scope="module")
def up(module_home: Home, project: Path) -> Home:
    done = module_home.shoal("up", str(project / "cluster.yaml"))
    assert done.returncode == 0, done.stderr
    return module_home


class Sweeps:
    """Commands in the project's directory."""

    def __init__(self, home: Home, project: Path) -> None:
        self.home, self.project = home, project

    def run(self, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        return self.home.shoal("sweep", *arguments, cwd=cwd or self.project)

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [SHOAL, "sweep", *arguments], env=self.home.env, cwd=self.project,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def results(self, directory: Path) -> dict[int, dict[str, Any]]:
        done = self.home.shoal("sweep", "show", str(directory), "--json")
        return {result["run"]: result for result in json.loads(done.stdout)}


@pytest.fixture
def sweeps(up: Home, project: Path) -> Sweeps:
    return Sweeps(up, project)


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """Runs with x > 1 wait until it has a file `open`, and every start is a line in `started`."""
    path = tmp_path / "gate"
    path.mkdir()
    (path / "started").touch()
    return path


def starts(gate: Path) -> list[int]:
    return sorted(int(line) for line in (gate / "started").read_text().split())


def test_runs_of_every_kind_have_their_results(sweeps: Sweeps, tmp_path: Path) -> None:
    out = tmp_path / "out"
    modes = "mode='',crash,fail,hang,print"
    done = sweeps.run(
        "train.py", "--grid", "x=4", "--grid", modes, "--cpus", "0.5", "--time-limit", "5s",
        "--retries", "1", "--output-limit", "0.01", "-o", str(out),
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    results = {result["params"]["mode"]: result for result in sweeps.results(out).values()}
    assert {mode: result["status"] for mode, result in results.items()} == {
        "": "ok", "crash": "failed", "fail": "failed", "hang": "timeout", "print": "ok",
    }  # fmt: skip
    assert results[""]["metrics"] == results["print"]["metrics"] == {"loss": 2.0}
    assert results["crash"]["why"] == "ended by SIGSEGV (segmentation fault)"
    assert [results[mode]["attempts"] for mode in ("", "crash", "hang")] == [1, 2, 1]
    assert "ValueError: no such data" in done.stderr
    assert results["print"]["printed"] > 20_000_000
    directory = out / "runs" / f"{results['print']['run']:04}"
    assert (directory / "output.log").stat().st_size < 11_000
    assert (directory / "files" / "model.txt").read_text() == "weights 4"
    assert "5 runs, 3 failed" in done.stderr


@pytest.mark.long
def test_a_run_that_prints_a_gigabyte_has_its_result(sweeps: Sweeps, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = sweeps.run("train.py", "--grid", "x=4", "--grid", "mode=print-much", "-o", str(out))
    assert done.returncode == 0, done.stderr
    (result,) = sweeps.results(out).values()
    assert (result["status"], result["metrics"]) == ("ok", {"loss": 2.0})
    assert result["printed"] > 2**30
    assert sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) < 2**24


def test_a_killed_laptop_resumes_without_repeating_a_run(
    sweeps: Sweeps, tmp_path: Path, gate: Path
) -> None:
    out = tmp_path / "out"
    arguments = ("train.py", "--grid", "x=1..3", "-o", str(out), "--", "--gate", str(gate))
    laptop = sweeps.start(*arguments)
    _wait(lambda: (out / "runs" / "0001").exists(), "the first run is here")
    laptop.kill()
    laptop.wait(10)
    (gate / "open").touch()
    done = sweeps.run(*arguments)
    assert done.returncode == 0, done.stderr
    assert sorted(sweeps.results(out)) == [1, 2, 3]
    assert starts(gate) == [1, 2, 3]


def test_a_killed_driver_is_replaced_and_its_runs_end_with_it(
    sweeps: Sweeps, tmp_path: Path, gate: Path
) -> None:
    out = tmp_path / "out"
    laptop = sweeps.start("train.py", "--grid", "x=1..3", "-o", str(out), "--", "--gate", str(gate))
    _wait(lambda: (out / "runs" / "0001").exists() and len(starts(gate)) == 3, "runs are running")
    sweep = json.loads((out / "sweep.json").read_text())["id"]
    orphans = [p.pid for p in _processes("train.py", str(gate)) if p.pid != laptop.pid]
    assert len(orphans) == 2
    (driver,) = [p for p in _processes("drive", sweep) if p.name().startswith("python")]
    driver.send_signal(signal.SIGKILL)
    _wait(lambda: not any(alive(pid) for pid in orphans), "the runs of the lost driver have ended")
    (gate / "open").touch()
    assert laptop.wait(120) == 0
    assert sorted(sweeps.results(out)) == [1, 2, 3]
    assert starts(gate) == [1, 2, 2, 3, 3]


@pytest.mark.long
def test_the_runs_of_a_lost_node_are_repeated(sweeps: Sweeps, tmp_path: Path, gate: Path) -> None:
    out = tmp_path / "out"
    sweep = sweeps.start("train.py", "--grid", "x=1..5", "-o", str(out), "--", "--gate", str(gate))
    _wait(lambda: len(starts(gate)) == 5, "all run, two of them on a worker", 120)
    (raylet,) = daemons_of(sweeps.home.instance_id("worker-1"), "raylet")
    raylet.kill()
    _wait(lambda: len(starts(gate)) == 7, "the lost runs run again", 120)
    (gate / "open").touch()
    assert sweep.wait(120) == 0
    assert sorted(r["attempts"] for r in sweeps.results(out).values()) == [1, 1, 1, 2, 2]


@pytest.mark.long  # the test of a killed driver covers how another takes over
def test_a_sweep_goes_on_after_the_heads_ray_was_restarted(
    sweeps: Sweeps, tmp_path: Path, gate: Path
) -> None:
    out = tmp_path / "out"
    sweep = sweeps.start("train.py", "--grid", "x=1..3", "-o", str(out), "--", "--gate", str(gate))
    _wait(lambda: (out / "runs" / "0001").exists() and len(starts(gate)) == 3, "runs are running")
    (gcs,) = daemons_of(sweeps.home.instance_id("head"), "gcs_server")
    gcs.kill()
    _wait(lambda: len(starts(gate)) == 5, "another driver runs what is not done", 150)
    (gate / "open").touch()
    assert sweep.wait(120) == 0
    assert sorted(sweeps.results(out)) == [1, 2, 3]
    assert starts(gate) == [1, 2, 2, 3, 3]


@pytest.mark.long  # test_results.py covers how a directory is continued
def test_an_extended_sweep_runs_only_what_is_new_and_failures_on_request(
    sweeps: Sweeps, tmp_path: Path, gate: Path
) -> None:
    out = tmp_path / "out"
    (gate / "open").touch()
    fixed = ("-o", str(out), "--", "--gate", str(gate))
    assert sweeps.run("train.py", "--grid", "x=1..2", *fixed).returncode == 0
    done = sweeps.run("train.py", "--grid", "x=1,2,3", "--grid", "mode=", *fixed)
    assert done.returncode == 2  # an empty value is a mistake
    assert sweeps.run("train.py", "--grid", "x=1..3", *fixed).returncode == 0
    assert starts(gate) == [1, 2, 3]
    done = sweeps.run("resume", str(out), "--retry-failed")
    assert done.returncode == 0
    assert starts(gate) == [1, 2, 3]


@pytest.mark.long
def test_a_worker_that_joins_in_the_middle_runs_some(
    sweeps: Sweeps, project: Path, tmp_path: Path, gate: Path
) -> None:
    """The cluster grows for the runs that wait."""
    out = tmp_path / "out"
    sweep = sweeps.start(
        "train.py", "--grid", "x=2..5", "--cpus", "1", "-o", str(out), "--", "--gate", str(gate)
    )
    _wait(lambda: len(starts(gate)) == 4, "all four run, two of them on a new node", 120)
    (gate / "open").touch()
    assert sweep.wait(120) == 0
    losses = {result["metrics"]["loss"] for result in sweeps.results(out).values()}
    assert losses == {1.0, 1.5, 2.0, 2.5}


@pytest.mark.long
def test_a_sweep_of_a_file_can_be_detached_and_shown(
    sweeps: Sweeps, project: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    (project / "sweep.yaml").write_text(
        "script: train.py\nrandom: {x: 'randint(1, 100)'}\nsamples: 3\nrandom_seed: 4\n"
    )
    done = sweeps.run("sweep.yaml", "--detach", "-o", str(out))
    assert done.returncode == 0, done.stderr
    assert "shoal sweep train.py" in sweeps.home.shoal("job", "list").stdout
    assert sweeps.run("resume", str(out)).returncode == 0
    shown = sweeps.home.shoal("sweep", "show", str(out), "--svg", str(tmp_path / "plot.svg"))
    losses = [float(line.split()[2]) for line in shown.stdout.splitlines()[1:4]]
    assert losses == sorted(losses)
    assert "3 of 3 runs have ended" in shown.stdout
    assert (tmp_path / "plot.svg").read_text().count("<circle") == 3


@pytest.mark.long
def test_a_hydra_app_gets_overrides(sweeps: Sweeps, tmp_path: Path) -> None:
    app = tmp_path / "app"
    (app / "conf").mkdir(parents=True)
    (app / "conf" / "config.yaml").write_text("model: {width: 1}\nheight: 2\n")
    (app / "app.py").write_text(HYDRA)
    (app / "requirements.txt").write_text("hydra-core==1.3.2\n")
    out = tmp_path / "out"
    done = sweeps.run(
        "app.py", "--grid", "model.width=2,3", "--requirements", "requirements.txt", "-o", str(out),
        cwd=app,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [r["metrics"]["area"] for _, r in sorted(sweeps.results(out).items())] == [4, 6]
    assert (out / "runs" / "0001" / "files" / ".hydra" / "overrides.yaml").exists()


@pytest.mark.long
def test_sacred_fails_with_a_fix_and_runs_when_pinned(sweeps: Sweeps, tmp_path: Path) -> None:
    example = tmp_path / "sacred"
    shutil.copytree(Path(__file__).parents[2] / "examples" / "sacred", example)
    pinned = (example / "requirements.txt").read_text()
    (example / "fresh.txt").write_text(pinned.replace("setuptools<81", "setuptools>=82"))
    out = tmp_path / "fresh"
    done = sweeps.run(
        "train.py", "--requirements", "fresh.txt", "--grid", "lr=0.1", "-o", str(out), cwd=example
    )
    assert done.returncode == 1, done.stderr
    assert "add this line to requirements.txt: setuptools<81" in done.stderr
    out = tmp_path / "pinned"
    done = sweeps.run("sweep.yaml", "-o", str(out), cwd=example)
    assert done.returncode == 0, done.stderr
    runs = sorted(path.name for path in (out / "sacred").iterdir())
    assert runs == ["1", "2", "3", "4", "5", "6", "_sources"]
    config = json.loads((out / "sacred" / "3" / "config.json").read_text())
    result = sweeps.results(out)[3]
    assert (config["lr"], config["data"]["noise"]) == (result["params"]["lr"], 0.1)
    assert result["metrics"].keys() == {"loss", "result"}
    assert (out / "sacred" / "3" / "weights.txt").exists()
    assert "y = " in (out / "sacred" / "3" / "cout.txt").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("missing.py",), "script missing.py not found"),
        (("train.py", "--grid", "x"), "--grid x has no NAME="),
        (("train.py", "--random", "x=uniform(0,1)"), "--random needs --samples"),
        (("train.py", "--grid", "x=1", "--template", "{y}"), "uses {y}"),
        (("train.py", "--grid", "x=1", "--cpus", "64"), "has 64 CPUs for a run"),
        (("train.py", "--stop", "--detach"), "--stop cannot be combined with --detach"),
        (("resume", "missing"), "no sweep in missing"),
        (("show", "missing"), "no sweep in missing"),
    ],
)
def test_mistakes_are_found_before_anything_starts(
    sweeps: Sweeps, arguments: tuple[str, ...], message: str
) -> None:
    done = sweeps.run(*arguments)
    assert done.returncode in (2, 3)
    assert message in done.stderr
    assert not (sweeps.project / "sweeps").exists()


def _processes(*words: str) -> list[psutil.Process]:
    return [
        p
        for p in psutil.process_iter(["cmdline"])
        if all(any(word in part for part in p.info["cmdline"] or ()) for word in words)
        and p.pid != os.getpid()
    ]


def _wait(condition: Any, what: str, timeout: float = 60) -> None:
    import asyncio

    asyncio.run(until(condition, what, timeout))
