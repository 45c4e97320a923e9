"""Real jobs on a real Ray cluster on this machine, from the command line."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cli.shoal_command import Home, daemons_of

pytest.importorskip("torch", reason="needs torch")
pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]

CLUSTER = """
cluster_name: trainers
max_workers: 0
provider: {type: embedded}
available_node_types:
  head:
    resources: {CPU: 4}
head_node_type: head
"""

# Trains until a file `enough` appears beside it, or for a number of epochs.
CODE = """
import sys, time
import numbers_of_samples  # a module beside the script
import torch
import shoal.train.torch as adl
from shoal.train import env

adl.init_process_group("gloo")
size = numbers_of_samples.SIZE
data = torch.utils.data.TensorDataset(torch.randn(size, 4), torch.randn(size, 1))
loader = adl.AdaptiveDataLoader(data, batch_size=8, shuffle=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model = adl.AdaptiveDataParallel(model, optimizer)
for epoch in adl.remaining_epochs_until(int(sys.argv[1])):
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        time.sleep(0.02)
    print("epoch", epoch, "with", env.num_replicas(), flush=True)
if env.replica_rank() == 0:
    torch.save(model.module.state_dict(), "model.pt")
print("done")
"""

PLAIN = """
import sys
print("as", __name__, "with", sys.argv)
if sys.argv[1] == "raise":
    raise ValueError("a bug")
sys.exit(int(sys.argv[1]))
"""


# On two cores more workers train no faster, and the job would give them back.
ALL_WORKERS = ("--objective", "size")


class Jobs:
    def __init__(self, home: Home, scripts: Path) -> None:
        self.home = home
        self.scripts = scripts

    def train(self, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.home.shoal("train", "-f", str(self.scripts / script), *arguments, timeout=150)

    def start(self, script: str, *arguments: str) -> str:
        """Start a job and return its id."""
        done = self.train(script, "--detach", "--json", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        events = [json.loads(line) for line in done.stdout.splitlines()]
        (job,) = [event["job"] for event in events if event["event"] == "train_started"]
        return str(job)

    def entries(self, job: str) -> list[dict[str, Any]]:
        (path,) = self.home.path.rglob(f"{job}/journal.jsonl")
        return [json.loads(line) for line in path.read_text().splitlines()]

    def generations(self, job: str) -> list[dict[str, Any]]:
        return [e for e in self.entries(job) if e["kind"] == "generation"]

    def step(self, job: str) -> int:
        return max((e["step"] for e in self.entries(job) if e["kind"] == "progress"), default=0)

    def await_workers(self, job: str, count: int) -> list[str]:
        """Wait until that many train, and some steps more."""

        def ready() -> bool:
            generations = self.generations(job)
            return bool(generations) and len(generations[-1]["members"]) == count

        wait_for(ready, f"{count} workers of {job}")
        return list(self.generations(job)[-1]["members"])

    def await_steps(self, job: str) -> None:
        before = self.step(job)
        wait_for(lambda: self.step(job) > before, f"steps of {job}")

    def process(self, job: str, worker: str) -> psutil.Process:
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                env = process.environ()
                if (
                    env.get("ADAPTDL_JOB_ID") == job
                    and env.get("SHOAL_TRAIN_WORKER") == worker
                    and "shoal.train.worker" in process.cmdline()
                ):
                    return process
        raise AssertionError(f"{worker} has no process")

    def processes(self, job: str) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("ADAPTDL_JOB_ID") == job:
                    found.append(process)
        return found


def wait_for(condition: Any, what: str, timeout: float = 90) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout} s: {what}"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def jobs(module_home: Home, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    scripts = tmp_path_factory.mktemp("scripts")
    (scripts / "code.py").write_text(CODE)  # the name of a module that Ray's own programs import
    (scripts / "numbers_of_samples.py").write_text("SIZE = 400")
    (scripts / "plain.py").write_text(PLAIN)
    yaml = tmp_path_factory.mktemp("cluster") / "cluster.yaml"
    yaml.write_text(CLUSTER)
    done = module_home.shoal("up", str(yaml), "--yes")
    assert done.returncode == 0, done.stderr
    yield Jobs(module_home, scripts)
    module_home.shoal("down", "--all", "--yes")


def test_a_script_without_the_library_runs_once_and_its_status_is_the_commands(jobs: Jobs) -> None:
    done = jobs.train("plain.py", "-m", "3", "--", "3", "--lr", "a b")
    assert done.returncode == 3, done.stderr
    assert done.stdout == "as __main__ with ['plain.py', '3', '--lr', 'a b']\n"
    assert done.stderr.count("the script failed") == 1
    assert jobs.train("plain.py", "--", "0").returncode == 0


def test_an_exception_is_shown_once_with_one_message(jobs: Jobs) -> None:
    done = jobs.train("plain.py", "--", "raise")
    assert done.returncode == 1
    assert (done.stdout + done.stderr).count("ValueError: a bug") == 1
    assert "the script failed" in done.stderr


def test_gpus_where_there_are_none_are_refused(jobs: Jobs) -> None:
    done = jobs.train("plain.py", "--gpus", "1", "--", "0")
    assert done.returncode == 2
    assert "--gpus 0" in done.stderr


def test_a_job_grows_shrinks_and_survives_a_kill_and_a_freeze(jobs: Jobs) -> None:
    job = jobs.start("code.py", "-m", "3", *ALL_WORKERS, "--", "1000")
    members = jobs.await_workers(job, 3)
    jobs.await_steps(job)
    jobs.process(job, members[1]).kill()
    wait_for(lambda: "worker_lost" in [e["kind"] for e in jobs.entries(job)], "the loss")
    jobs.await_workers(job, 3)  # replaced
    jobs.await_steps(job)
    assert jobs.home.shoal("train", "resize", job, "2").returncode == 0
    members = jobs.await_workers(job, 2)
    jobs.await_steps(job)
    jobs.process(job, members[0]).send_signal(signal.SIGSTOP)
    wait_for(lambda: any("SIGSTOP" in e.get("text", "") for e in jobs.entries(job)), "the freeze")
    jobs.await_workers(job, 2)
    jobs.await_steps(job)
    explained = jobs.home.shoal("train", "explain", job)
    assert "was killed by SIGKILL" in explained.stdout
    assert jobs.home.shoal("train", "stop", job).returncode == 0
    wait_for(lambda: not jobs.processes(job), "no process is left")
    (listed,) = [j for j in jobs.home.json("train", "list") if j["job"] == job]
    assert listed["status"] == 143


@pytest.mark.long
def test_training_goes_on_while_the_controller_is_restarted(jobs: Jobs) -> None:
    job = jobs.start("code.py", "-m", "2", *ALL_WORKERS, "--", "1000")
    members = jobs.await_workers(job, 2)
    pids = [jobs.process(job, worker).pid for worker in members]
    # Other tests may have training jobs on other clusters at the same time.
    raylets = daemons_of(jobs.home.instance_id("head"), "raylet")
    children = [child for raylet in raylets for child in raylet.children()]
    (controller,) = [c for c in children if c.cmdline()[0].startswith("ray::Controller")]
    controller.kill()
    wait_for(lambda: "restored" in [e["kind"] for e in jobs.entries(job)], "the controller is back")
    jobs.await_steps(job)
    assert [jobs.process(job, worker).pid for worker in members] == pids
    assert jobs.generations(job)[-1]["members"] == members
    assert jobs.home.shoal("train", "stop", job).returncode == 0


@pytest.mark.long
def test_two_jobs_at_once_do_not_disturb_each_other(jobs: Jobs) -> None:
    first = jobs.start("code.py", "-m", "2", *ALL_WORKERS, "--", "1000")
    second = jobs.start("code.py", "-m", "2", *ALL_WORKERS, "--", "1000")
    members = {job: jobs.await_workers(job, 2) for job in (first, second)}
    jobs.process(first, members[first][1]).kill()
    wait_for(lambda: "worker_lost" in [e["kind"] for e in jobs.entries(first)], "the loss")
    jobs.await_workers(first, 2)
    assert jobs.home.shoal("train", "stop", first).returncode == 0
    wait_for(lambda: not jobs.processes(first), "no process of the first is left")
    jobs.await_steps(second)
    assert [g["members"] for g in jobs.generations(second)][-1] == members[second]
    assert "worker_lost" not in [e["kind"] for e in jobs.entries(second)]
    states = {j["job"]: j["state"] for j in jobs.home.json("train", "list")}
    assert (states[first], states[second]) == ("stopped", "running")
    assert jobs.home.shoal("train", "stop", second).returncode == 0


@pytest.mark.long
def test_jobs_that_compete_share_the_cluster_and_the_last_one_gets_all_of_it(jobs: Jobs) -> None:
    first = jobs.start("code.py", "-m", "4", *ALL_WORKERS, "--", "100000")
    jobs.await_workers(first, 4)
    second = jobs.start("code.py", "-m", "4", *ALL_WORKERS, "--", "100000")
    for job in (first, second):
        jobs.await_workers(job, 2)
        jobs.await_steps(job)
    assert jobs.home.shoal("train", "stop", first).returncode == 0
    jobs.await_workers(second, 4)
    assert "worker_lost" not in [e["kind"] for e in jobs.entries(second)]
    assert jobs.home.shoal("train", "stop", second).returncode == 0
    wait_for(lambda: not jobs.processes(second), "no process is left")


def test_a_job_that_ends_brings_its_files_back(jobs: Jobs, tmp_path: Path) -> None:
    done = jobs.train("code.py", "-m", "2", "--output", str(tmp_path / "out"), "--", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "done"
    assert (tmp_path / "out" / "model.pt").exists()


@pytest.mark.long
def test_with_restarts_all_workers_start_again_from_a_checkpoint(jobs: Jobs) -> None:
    job = jobs.start("code.py", "-m", "1", "--rescale-mode", "restart", "--", "1000")
    (worker,) = jobs.await_workers(job, 1)
    jobs.await_steps(job)
    first = jobs.process(job, worker).pid
    assert jobs.home.shoal("train", "resize", job, "2").returncode == 0
    jobs.await_workers(job, 2)
    jobs.await_steps(job)
    assert jobs.process(job, worker).pid != first
    ended, restarted = jobs.generations(job)
    assert restarted["step"] >= ended["step"]
    assert jobs.home.shoal("train", "stop", job).returncode == 0
    wait_for(lambda: not jobs.processes(job), "no process is left")
