"""`shoal config`: a resolved cluster file, as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from shoal.cli import main

FILE = """\
cluster_name: asked
provider: {type: aws, region: us-west-2}
head_node: {InstanceType: p2.8xlarge}
"""


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    path = tmp_path / "cluster.yaml"
    path.write_text(FILE)
    return str(path)


def test_values_are_shown_with_their_origins_in_one_column(cluster: str) -> None:
    result = CliRunner().invoke(main, ["config", cluster, "--max-workers", "7"])
    assert result.exit_code == 0
    rows = [line for line in result.stdout.splitlines() if line.endswith(("yaml:1", "yaml:2"))]
    assert rows[0].split() == ["cluster_name:", "asked", "#", "cluster.yaml:1"]
    assert len({line.index("cluster.yaml:") for line in rows}) == 1
    assert "max_workers: 7" in result.stdout
    assert "command line" in result.stdout
    assert "cluster.yaml:3, legacy head_node" in result.stdout


def test_json_has_the_spec_and_its_origins(cluster: str) -> None:
    result = CliRunner().invoke(main, ["config", cluster, "--json"])
    report = json.loads(result.stdout)
    assert report["spec"]["cluster_name"] == "asked"
    assert report["origins"]["cluster_name"] == "cluster.yaml:1"


def test_without_a_file_the_default_cluster_is_shown() -> None:
    result = CliRunner().invoke(main, ["config"])
    assert "type: embedded" in result.stdout


def test_problems_go_to_stderr_with_exit_code_2(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text("provider: {type: awz}\n")
    result = CliRunner().invoke(main, ["config", str(path)])
    assert result.exit_code == 2
    assert "wrong.yaml:1  provider.type  'awz' is not a known provider" in result.stderr
    assert result.stdout == ""


def test_the_default_setup_commands_install_ray(cluster: str) -> None:
    result = CliRunner().invoke(main, ["config", cluster, "--json"])
    setup_commands = json.loads(result.stdout)["spec"]["head_setup"]["setup_commands"]
    assert "ray[default]" in setup_commands[1]
