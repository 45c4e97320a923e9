"""What Shoal changes in the start commands of a cluster file, and what it reads from them."""

from __future__ import annotations

import pytest

from shoal.ray_runtime.start_commands import (
    adapt_start_command,
    gcs_port,
    ray_programs,
    without_ray_stop,
)

OPTIONS = "--no-monitor --node-ip-address=10.0.0.1 --disable-usage-stats"


@pytest.mark.parametrize(
    "ray",
    [
        "ray",
        "/opt/venv/bin/ray",
        '"/opt/my venv/bin/ray"',
        "source /opt/env/bin/activate && ray",
        "ulimit -n 65536; conda activate ml && ray",
        "uv run ray",
        "python -m ray.scripts.scripts",
    ],
)
def test_options_are_added_and_the_rest_of_the_users_text_is_kept(ray: str) -> None:
    command = f"{ray} start --head --port=6380 --autoscaling-config=~/ray_bootstrap_config.yaml"
    adapted = adapt_start_command(command, "10.0.0.1")
    assert adapted == f"{ray} start {OPTIONS} --head --port=6380"
    assert gcs_port([command]) == 6380


def test_a_command_that_does_not_start_ray_is_left_alone() -> None:
    assert adapt_start_command("echo start", "10.0.0.1") == "echo start"


@pytest.mark.parametrize(
    "stop",
    [
        "ray stop",
        "  ray stop --force ",
        "/opt/venv/bin/ray stop",
        "source /opt/env/bin/activate && ray stop",
        "conda activate ml; ray stop --grace-period 5 || true",
        "uv run ray stop",
        "conda run -n ml --no-capture-output ray stop",
        "~/miniconda3/bin/conda run -n ml ray stop",
        "poetry run ray stop || true",
        "ray stop > /dev/null 2>&1; true",
    ],
)
def test_a_stop_is_left_out_where_nothing_runs(stop: str) -> None:
    assert without_ray_stop([stop, "ray start --head"]) == ["ray start --head"]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("ray stop; ulimit -n 65536; ray start --head", "ulimit -n 65536; ray start --head"),
        ("cd /x && ray stop && ray start --head", "cd /x && : && ray start --head"),
        ("ray stop && rm -rf /tmp/ray", "rm -rf /tmp/ray"),
        ("my-ray stop && ray start", "my-ray stop && ray start"),
        ("./array stop", "./array stop"),
        ("sudo ray stop; ray start", "sudo ray stop; ray start"),
        ("sudo -E ray stop && ray start", "sudo -E ray stop && ray start"),
        ("pgrep raylet && ray stop; ray start", "pgrep raylet && :; ray start"),
        ("pgrep raylet || ray stop; ray start", "pgrep raylet || :; ray start"),
        ("if true; then ray stop; fi; ray start", "if true; then :; fi; ray start"),
        ("(ray stop --force); ray start", "(:); ray start"),
        ("ray stop --unknown; ray start", "ray stop --unknown; ray start"),
        ("echo ray stop; ray start", "echo ray stop; ray start"),
        ("conda run -n ml ray stop; conda run -n ml ray start", "conda run -n ml ray start"),
        ("cd /x\nray stop\nray start", "cd /x\n:\nray start"),
    ],
)
def test_what_a_command_does_besides_stopping_is_kept(command: str, expected: str) -> None:
    assert without_ray_stop([command]) == [expected]


def test_the_paths_of_ray_are_read_from_the_start_commands() -> None:
    assert ray_programs(["/opt/venv/bin/ray stop", "ulimit -n 9; /opt/venv/bin/ray start"]) == [
        "/opt/venv/bin/ray"
    ]
    assert ray_programs([". ~/env/bin/activate && ray start"]) == ["~/env/bin/ray"]
    assert ray_programs(["uv run ray start --head"]) == [".venv/bin/ray"]
    assert ray_programs(["ray start --head"]) == []


@pytest.mark.parametrize("option", ["--port=6380", "--port 6380", '--port="6380"', "--port='6380'"])
def test_the_port_is_read_with_and_without_quotes(option: str) -> None:
    assert gcs_port([f"ray start --head {option} --num-cpus 2"]) == 6380
