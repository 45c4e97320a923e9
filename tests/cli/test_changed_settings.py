"""A running cluster gets other settings, from several commands at once too: what they say is true.
One embedded cluster with real Ray."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from shoal.core.file_lock import lock_owner
from tests.cli.shoal_command import Home
from tests.cli.terminal import CTRL_C, terminal
from tests.controller.elastic_cluster import until

pytestmark = pytest.mark.ray

YAML = """
cluster_name: demo
max_workers: 2
provider: {type: embedded}
available_node_types:
  head: {resources: {CPU: 0}}
  worker: {resources: {CPU: 1}, min_workers: 1}
head_node_type: head
"""

BUSY = """
import ray, sys, time, pathlib
ray.init(log_to_driver=False)

ready, finish = sys.argv[1:]

@ray.remote(num_cpus=1)
def work(ready, finish):
    pathlib.Path(ready).touch()
    while not pathlib.Path(finish).exists():
        time.sleep(0.1)
    return "finished"

print(ray.get(work.remote(ready, finish)))
"""


@pytest.fixture(scope="module")
def yaml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("yaml") / "cluster.yaml"
    path.write_text(YAML)
    return path


@pytest.fixture(scope="module")
def ups(module_home: Home, yaml: Path) -> list[tuple[int, int, str]]:
    """Two `up` of the cluster at once: the process id, exit code and output of each."""
    commands = [module_home.start("up", str(yaml)) for _ in range(2)]
    outputs = [command.communicate(timeout=150)[0] for command in commands]
    return [(c.pid, c.returncode, output) for c, output in zip(commands, outputs, strict=True)]


@pytest.fixture
def home(module_home: Home, ups: list[tuple[int, int, str]], yaml: Path) -> Home:
    """The cluster as its file says."""
    up(module_home, str(yaml), "--max-workers", "2", "--autostop", "off")
    return module_home


def up(home: Home, *args: str) -> str:
    done = home.shoal("up", *args)
    assert done.returncode == 0, done.stderr
    return done.stderr


def controller_files(home: Home) -> Path:
    (path,) = home.path.glob("e/*/.shoal/controller")
    return path


def test_of_two_ups_at_once_one_waits_and_says_for_whom(ups: list[tuple[int, int, str]]) -> None:
    assert [code for _, code, _ in ups] == [0, 0], ups
    (waiting,) = [output for _, _, output in ups if "waiting for another shoal up" in output]
    (first,) = [pid for pid, _, output in ups if output is not waiting]
    assert f"waiting for another shoal up of demo (process {first}, since " in waiting
    assert "nothing to do" in waiting


def test_nothing_to_do_is_said_only_when_nothing_was_done(home: Home, yaml: Path) -> None:
    assert "nothing to do" in up(home, str(yaml))
    changed = up(home, "demo", "--max-workers", "3")
    assert "max_workers 2 -> 3" in changed
    assert "nothing to do" not in changed
    assert "autostop off -> 31m" in up(home, str(yaml), "--autostop", "31m")
    assert "nothing to do" in up(home, "demo")
    until(lambda: "of at most 3 workers" in home.shoal("status").stdout, 60)
    assert re.search("autostop (after 31|in 3[01])", home.shoal("status").stdout)


def test_plan_shows_the_settings_that_up_would_change(home: Home, yaml: Path) -> None:
    plan = home.shoal("plan", str(yaml), "--max-workers", "7").stdout
    assert "max_workers 2 -> 7" in plan
    assert "nothing to do" not in plan


def test_a_dead_controller_is_started_again_and_up_says_so(home: Home, yaml: Path) -> None:
    files = controller_files(home)
    until(lambda: (files / "state.json").exists(), 60)
    locks = [files / "supervisor.lock", files / "controller.lock"]
    pids = [int(lock.read_text()) for lock in locks]
    # Stopped first: each of the two starts the other again.
    for sign in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            os.kill(pid, sign)
    until(lambda: not any(map(lock_owner, locks)), 60)
    started = up(home, str(yaml))
    assert "the controller starts again" in started
    assert "nothing to do" not in started


@pytest.mark.long
def test_busy_workers_above_a_lower_limit_finish_their_work(
    home: Home, yaml: Path, tmp_path: Path
) -> None:
    ready, finish = tmp_path / "ready", tmp_path / "finish"
    (tmp_path / "busy.py").write_text(BUSY)
    program = home.start("exec", "demo", f"python {tmp_path}/busy.py {ready} {finish}")
    until(ready.exists, 90)
    until(lambda: "1 task running" in home.shoal("status").stdout, 60)
    assert [(n["tasks"], n["actors"]) for n in home.json("status")["nodes"]] == [(0, 0), (1, 0)]
    with terminal(home, "down", "demo") as screen:
        screen.shows("The work on these nodes is lost: worker-1 (1 CPU in use).")
        screen.shows("Terminate all nodes of cluster demo? [y/N]: ")
        screen.type(CTRL_C)
        assert screen.exit_code() == 130
    lowered = up(home, "demo", "--min-workers", "0", "--max-workers", "0")
    assert "worker-1 is terminated once it is idle" in lowered
    finish.touch()
    assert "finished" in program.communicate(timeout=90)[0]
    until(lambda: len(home.instance_ids()) == 1, 90)
    up(home, str(yaml), "--min-workers", "1", "--max-workers", "2")


def test_an_up_that_down_overtakes_says_that_the_cluster_was_terminated(
    module_home: Home, tmp_path: Path
) -> None:
    yaml = tmp_path / "late.yaml"
    started = tmp_path / "started"
    wait = f"touch {started}; sleep 300"
    yaml.write_text(
        "{cluster_name: late, provider: {type: embedded}, min_workers: 0, "
        f"setup_commands: ['{wait}']}}"
    )
    coming_up = module_home.start("up", str(yaml))
    try:
        until(started.exists, 60)
        done = module_home.shoal("down", "late", "--yes")
        assert done.returncode == 0, done.stderr
        output = coming_up.communicate(timeout=60)[0]
    finally:
        if coming_up.poll() is None:
            coming_up.send_signal(signal.SIGINT)
            coming_up.wait(timeout=60)
    assert "cluster late was terminated while it came up" in output
    assert "143" not in output.replace(str(tmp_path), "")  # the status of the ended command
    assert coming_up.returncode == 4
