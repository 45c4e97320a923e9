"""A real Ray cluster on this machine, from the command line. The tests share one cluster; each
brings it up first if another has changed it."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.cli.shoal_command import SHOAL, Home, daemons_of
from tests.providers.local.ssh_bed import read_gcs

pytestmark = pytest.mark.ray

YAML = """
cluster_name: demo
max_workers: 3
provider: {type: embedded}
available_node_types:
  head:
    resources: {CPU: 0}
  fast:
    resources: {CPU: 2, disk_slot: 1.5}
    labels: {team: red}
    min_workers: 1
    max_workers: 3
head_node_type: head
setup_commands:
  - echo "set up as $RAY_NODE_TYPE_NAME in $(basename "$PWD")" > proof.txt
"""

PROGRAM = """
import ray, sys
ray.init(log_to_driver=False)

@ray.remote(num_cpus=1, resources={"disk_slot": 0.5}, label_selector={"team": "red"})
def where():
    return ray.util.get_node_ip_address()

print("ran on", ray.get(where.remote()), *sys.argv[1:])
"""


@pytest.fixture(scope="module")
def yaml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("yaml with a space") / "cluster.yaml"
    path.write_text(YAML)
    return path


@pytest.fixture
def up(module_home: Home, yaml: Path) -> Home:
    """The shared cluster as its file says: a head and one worker."""
    if len(module_home.instance_ids()) != 2:
        module_home.shoal("down", "--all", "--yes")
        done = module_home.shoal("up", str(yaml))
        assert done.returncode == 0, done.stderr
        assert "demo is ready: 2 nodes" in done.stderr
    return module_home


def test_the_nodes_have_the_declared_resources(up: Home, yaml: Path) -> None:
    status = up.json("status", str(yaml))
    head, worker = status["nodes"]
    assert (head["name"], head["phase"]) == ("head", "ready")
    assert (worker["node_type"], worker["phase"]) == ("fast", "ready")
    assert head["address"] != worker["address"]
    assert worker["total"]["CPU"] == 2
    assert worker["total"]["disk_slot"] == 1
    assert head["total"].get("CPU", 0) == 0


def test_setup_commands_ran_once_on_every_node(up: Home) -> None:
    proofs = sorted(p.read_text() for p in up.path.glob("e/*/proof.txt"))
    assert [proof.split()[3] for proof in proofs] == ["fast", "head"]


def test_a_program_finds_the_cluster(up: Home, yaml: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    worker = up.json("status", str(yaml))["nodes"][1]
    done = up.shoal("exec", str(yaml), "python program.py 'a  b' \"$HOME\"", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"ran on {worker['address']} a  b /")


def test_exec_returns_the_commands_own_exit_code(up: Home) -> None:
    assert up.shoal("exec", "demo", "exit 42").returncode == 42


def test_a_program_without_the_token_cannot_connect(up: Home) -> None:
    address = up.json("status")["address"]
    read = f'python -c "{read_gcs(address)}"'
    done = up.shoal("exec", f"unset RAY_AUTH_TOKEN_PATH RAY_AUTH_MODE; {read}")
    assert done.returncode != 0
    assert "auth" in (done.stdout + done.stderr).lower()
    done = up.shoal("exec", read)
    assert done.returncode == 0, done.stderr


def test_a_second_up_does_nothing(up: Home, yaml: Path) -> None:
    before = up.instance_ids()
    done = up.shoal("up", str(yaml))
    assert done.returncode == 0
    assert "nothing to do" in done.stderr
    assert up.instance_ids() == before


def test_ls_lists_the_cluster(up: Home) -> None:
    (entry,) = up.json("ls")
    assert (entry["cluster"], entry["provider"], entry["nodes"]) == ("demo", "embedded", 2)


def test_up_restarts_only_the_node_that_died(up: Home, yaml: Path) -> None:
    worker = next(
        m
        for m in up.instance_ids()
        if "worker" in (up.path / "e" / m / "instance.json").read_text()
    )
    for daemon in daemons_of(worker, "raylet"):
        daemon.kill()
        daemon.wait(10)
    done = up.shoal("up", str(yaml), "--json")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(e["action"], e["subject"]) for e in events if e["event"] == "plan"] == [
        ("start", "worker-1")
    ]
    assert {e["node"] for e in events if e["event"] == "node"} == {"worker-1"}
    assert events[-1]["event"] == "ready"


@pytest.mark.long
def test_a_larger_minimum_only_adds_a_node_and_down_can_keep_the_files_minimum(
    up: Home, yaml: Path
) -> None:
    before = up.instance_ids()
    done = up.shoal("up", str(yaml), "--min-workers", "2")
    assert done.returncode == 0, done.stderr
    assert "+ create    1 x fast" in done.stderr
    assert len(up.json("status", "demo")["nodes"]) == 3
    assert up.instance_ids() > before
    assert up.shoal("up", str(yaml), "--min-workers", "1").returncode == 0
    done = up.shoal("down", str(yaml), "--workers-only", "--keep-min-workers", "--yes")
    assert "1 node terminated" in done.stderr
    assert [node["name"] for node in up.json("status")["nodes"]] == ["head", "worker-1"]


def test_submit_runs_a_script_in_place(up: Home, tmp_path: Path) -> None:
    (tmp_path / "my script.py").write_text("import os, sys; print(os.getcwd(), sys.argv[1:])")
    done = up.shoal("submit", "demo", "my script.py", "--", "a  b", "$(id)", cwd=tmp_path)
    assert done.stdout == f"{tmp_path} ['a  b', '$(id)']\n"


def test_attach_opens_a_shell_that_finds_the_cluster(up: Home) -> None:
    address = up.json("status")["address"]
    done = subprocess.run(
        [SHOAL, "attach"], env=up.env, input="echo $RAY_ADDRESS; exit 5", capture_output=True,
        text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (5, f"{address}\n")


def test_ip_addresses_are_printed_one_per_line(up: Home) -> None:
    nodes = up.json("status")["nodes"]
    assert up.shoal("get-head-ip").stdout == f"{nodes[0]['address']}\n"
    workers = [node["address"] for node in nodes[1:]]
    assert up.shoal("get-worker-ips").stdout.split() == workers


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (("rsync-up", "demo", ".", "/tmp"), "this machine's own files"),
        (("rsync-down",), "has no file_mounts"),
        (("ssh-config",), "are not reached by SSH"),
        (("exec", "true", "--tmux"), "its head is this machine"),
        (("exec", "true", "--run-env", "docker"), "no docker section"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_commands_that_need_remote_nodes_say_why_they_fail(
    up: Home, command: tuple[str, ...], reason: str
) -> None:
    done = up.shoal(*command)
    assert done.returncode == 2
    assert reason in done.stderr


def test_the_dashboard_url_logs_in(up: Home) -> None:
    with up.start("dashboard", "--json") as running:
        assert running.stdout is not None
        login = json.loads(running.stdout.readline())["url"]
        page = up.json("status")["dashboard"] + "/api/cluster_status"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(page)
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        browser.open(login)
        assert browser.open(page).status == 200
        running.send_signal(signal.SIGINT)
        assert running.wait(20) == 0


@pytest.mark.long
def test_start_restarts_ray_after_stop(up: Home) -> None:
    instance_ids = up.instance_ids()
    assert up.shoal("stop", "--yes").returncode == 0
    status = up.shoal("status", "--json")
    assert status.returncode == 4
    assert {node["phase"] for node in json.loads(status.stdout)["nodes"]} == {"stopped"}
    done = up.shoal("start")
    assert done.returncode == 0, done.stderr
    assert up.shoal("status").returncode == 0
    assert up.instance_ids() == instance_ids


def test_down_without_a_terminal_requires_yes(up: Home) -> None:
    done = up.shoal("down", "demo")
    assert done.returncode == 2
    assert "--yes" in done.stderr
    assert len(up.instance_ids()) == 2


def test_down_leaves_nothing_behind(up: Home) -> None:
    instance_ids = up.instance_ids()
    done = up.shoal("down", "demo", "--yes")
    assert done.returncode == 0, done.stderr
    assert up.leftovers(instance_ids) == []
    assert up.json("ls") == []
