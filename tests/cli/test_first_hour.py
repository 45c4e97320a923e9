"""What a newcomer does with a running cluster. The tests share one embedded cluster and run in any
order: each leaves it as it was."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import temporary_home
from tests.cli.shoal_command import SHOAL, Home, daemons_of
from tests.controller.elastic_cluster import until

pytestmark = pytest.mark.ray

YAML = """
cluster_name: hour
provider: {type: embedded}
max_workers: 3
idle_timeout_minutes: 60
available_node_types:
  head: {resources: {CPU: 1}}
  w: {resources: {CPU: 1, GPU: 1}, min_workers: 1, max_workers: 2}
head_node_type: head
setup_commands: [echo the setup of a node]
shoal: {autostop: 3h}
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hour") / "hour.yaml"
    path.write_text(YAML)
    return path


@pytest.fixture(scope="module")
def shared(file: Path) -> Iterator[Home]:
    with temporary_home() as home:
        done = home.shoal("up", str(file))
        assert done.returncode == 0, done.stderr
        # Nothing may contradict what `up` has just said.
        status = home.shoal("status")
        assert status.returncode == 0, status.stdout
        assert "2 of 2 nodes ready" in status.stdout
        assert "1 of at most 3 workers" in status.stdout
        assert "heartbeat" not in status.stdout
        yield home


@pytest.fixture
def hour(shared: Home, file: Path) -> Iterator[Home]:
    yield shared
    if shared.shoal("status").returncode:
        assert shared.shoal("up", str(file), "--yes").returncode == 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def running(home: Home, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = home.start(*arguments)
    try:
        yield process
    finally:
        process.terminate()  # a killed one would leave its command running
        process.communicate(timeout=60)


def test_status_shows_totals_and_when_the_cluster_stops(hour: Home) -> None:
    text = hour.shoal("status").stdout
    assert "0 of 2 CPU in use, 0 of 1 GPU in use" in text
    assert re.search(r"autostop (in 2h 5\dm unless it is used|after 3h 0m without use)", text), text


def test_exec_without_a_terminal_ends_on_sigint(hour: Home) -> None:
    with running(hour, "exec", "hour", "echo begun; sleep 600; echo never") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert "same command" not in process.stdout.read()


def test_exec_without_a_terminal_ends_on_sigterm_and_promises_nothing(hour: Home) -> None:
    with running(hour, "exec", "hour", "echo begun; sleep 600; echo never") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.terminate()
        assert process.wait(60) == 143
        assert process.stdout.read() == ""


def test_exec_forwards_a_port(hour: Home) -> None:
    local, remote = free_port(), free_port()
    server = f"python -m http.server {remote} --bind 127.0.0.1"
    with running(hour, "exec", "hour", server, "-p", f"{local}:{remote}"):

        def answers() -> bool:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{local}/", timeout=10) as answer:
                    return bool(answer.status == 200)
            except OSError:
                return False

        until(answers, 60)


def test_the_dashboard_is_on_the_port_that_was_asked_for(hour: Home) -> None:
    port = free_port()
    with running(hour, "dashboard", "hour", "--port", str(port)) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        with urllib.request.urlopen(url, timeout=30) as login:
            assert f"url=http://127.0.0.1:{port}/" in login.read().decode()
        path = f"http://127.0.0.1:{port}/api/authentication_mode"
        with urllib.request.urlopen(path, timeout=30) as answer:
            assert answer.status == 200


def test_env_lets_a_program_outside_connect(hour: Home) -> None:
    program = (
        "import ray; ray.init(logging_level='ERROR'); print(int(ray.cluster_resources()['GPU']))"
    )
    command = f'eval "$({SHOAL} env hour)" && {sys.executable} -c "{program}"'
    env = {**hour.env, "RAY_ADDRESS": "", "RAY_AUTH_MODE": "disabled"}
    done = subprocess.run(
        ["sh", "-c", command], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "1\n", done.stderr
    variables = hour.json("env", "hour")
    assert variables["RAY_ADDRESS"] == hour.json("status")["address"]


def test_logs_show_setup_ray_and_controller(hour: Home) -> None:
    head = hour.shoal("logs", "hour")
    assert head.returncode == 0, head.stderr
    assert "the setup of a node" in head.stdout
    assert "controller.log <==" in head.stdout
    assert "gcs_server.out <==" in head.stdout
    worker = hour.shoal("logs", "worker-1", "--only", "ray").stdout
    assert "raylet.out <==" in worker
    assert "gcs_server" not in worker
    assert "controller.log" not in worker


def test_logs_of_an_unknown_node_name_the_nodes(hour: Home) -> None:
    done = hour.shoal("logs", "hour", "worker-9")
    assert done.returncode == 3
    assert "worker-1" in done.stderr


def test_why_takes_a_cluster_like_every_other_command(hour: Home, file: Path) -> None:
    for cluster in ("hour", str(file)):
        done = hour.shoal("why", cluster)
        assert done.returncode == 0, done.stderr
    assert "worker-1 (w) has been ready" in hour.shoal("why", "hour", "worker-1").stdout
    assert "worker-1 (w) has been ready" in hour.shoal("why", "worker-1").stdout


def test_the_prompt_of_attach_shows_the_cluster(hour: Home) -> None:
    parent, child = pty.openpty()
    env = {**hour.env, "SHELL": "/bin/bash", "PS1": "> ", "HOME": str(hour.path), "TERM": "dumb"}
    process = subprocess.Popen(
        [SHOAL, "attach", "hour"], env=env, stdin=child, stdout=child, stderr=child
    )
    os.close(child)
    shown = ""
    try:

        def has_prompt() -> bool:
            nonlocal shown
            shown += os.read(parent, 4096).decode(errors="replace")
            return "(hour) " in shown

        until(has_prompt, 60)
        os.write(parent, b"exit\n")
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(parent)


def test_a_lost_worker_is_restarted_and_why_says_so(hour: Home) -> None:
    worker = hour.instance_id("worker-1")
    for daemon in daemons_of(worker, "raylet"):
        daemon.kill()
    until(lambda: "its Ray was lost; restarting it" in hour.shoal("why", "hour").stdout, 120)
    until(lambda: hour.shoal("status").returncode == 0, 120)
    assert hour.instance_id("worker-1") == worker


def test_down_with_keep_min_workers_keeps_the_head_too(hour: Home) -> None:
    done = hour.shoal("down", "hour", "--keep-min-workers", "--yes")
    assert done.returncode == 0, done.stderr
    assert "no nodes to terminate" in done.stderr
    assert hour.shoal("status").returncode == 0


@pytest.mark.long
def test_down_workers_only_keeps_head_and_controller(hour: Home, file: Path) -> None:
    done = hour.shoal("down", "hour", "--workers-only", "--yes")
    assert done.returncode == 0, done.stderr
    status = hour.shoal("status")
    assert "1 of 1 nodes ready" in status.stdout
    assert "0 of at most 3 workers" in status.stdout, "the controller reports"
    assert status.returncode == 0, "min_workers count again from the next up on"
    done = hour.shoal("up", str(file))
    assert "hour is ready: 2 nodes" in done.stderr


def test_a_cluster_that_cannot_have_its_min_workers_is_not_ready(
    hour: Home, file: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.yaml"
    extra = "  x: {resources: {x: 1}, min_workers: 1, worker_setup_commands: [exit 3]}\n"
    broken.write_text(YAML.replace("head_node_type:", f"{extra}head_node_type:"))
    done = hour.shoal("up", str(broken), "--yes")
    assert done.returncode == 4, done.stderr
    status = hour.shoal("status")
    assert status.returncode == 4
    assert "2 of 3 nodes ready" in status.stdout
    done = hour.shoal("up", str(file), "--yes")
    assert done.returncode == 0, done.stderr
    until(lambda: "2 of 2 nodes ready" in hour.shoal("status").stdout, 60)


DRIVER = """
import ray, time
ray.init(logging_level="ERROR", log_to_driver=False)
hang = ray.remote(num_cpus=0)(lambda: time.sleep(600))
reference = hang.remote()
print("begun", flush=True)
ray.get(reference)
"""


@pytest.mark.long
def test_a_killed_gcs_is_replaced_at_the_first_try(hour: Home, file: Path, tmp_path: Path) -> None:
    (tmp_path / "driver.py").write_text(DRIVER)
    before = len(restarts_of_the_head(hour))
    with running(hour, "exec", "hour", f"python {tmp_path}/driver.py") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        (gcs,) = daemons_of(hour.instance_id("head"), "gcs_server")
        gcs.kill()
        assert process.wait(120) != 0
        printed = process.stdout.read()
    assert "the Ray of hour died while the command ran" in printed
    assert "shoal status hour" in printed
    # The head is restarting: `up` waits for it, and has nothing to ask.
    done = hour.shoal("up", str(file))
    assert done.returncode == 0, done.stderr
    assert "waiting for the controller, which is restarting the head's Ray" in done.stderr
    until(lambda: hour.shoal("status").returncode == 0, 120)
    # Old raylets would have made the first restarts fail.
    assert restarts_of_the_head(hour)[before:] == ["restart"]


def restarts_of_the_head(home: Home) -> list[str]:
    return [d["action"] for d in decisions(home) if d["subject"] == "head"]


def decisions(home: Home) -> list[dict[str, Any]]:
    recent: list[dict[str, Any]] = home.json("why", "hour")["decisions"]
    return recent


@pytest.mark.long
def test_up_restarts_a_head_whose_gcs_has_died(hour: Home, file: Path) -> None:
    """Without a controller, which would restart it."""
    for path in controller_locks(hour):
        os.kill(int(path.read_text()), signal.SIGKILL)
    (gcs,) = daemons_of(hour.instance_id("head"), "gcs_server")
    gcs.kill()
    done = hour.shoal("up", str(file))
    assert done.returncode == 0, done.stderr
    assert "hour is ready: 2 nodes" in done.stderr
    assert hour.shoal("status").returncode == 0


def controller_locks(home: Home) -> list[Path]:
    """The locks of the supervisor and of the controller, which the former would start again."""
    (directory,) = home.path.glob("e/*/.shoal/controller")
    return [directory / "supervisor.lock", directory / "controller.lock"]
