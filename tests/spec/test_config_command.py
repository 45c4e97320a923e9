"""`shoal config`: a cluster file as understood, for a person and for a program."""

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


def test_shows_each_value_with_its_origin_in_one_column(cluster: str) -> None:
    done = CliRunner().invoke(main, ["config", cluster, "--max-workers", "7"])
    assert done.exit_code == 0
    rows = [line for line in done.stdout.splitlines() if line.endswith(("yaml:1", "yaml:2"))]
    assert rows[0].split() == ["cluster_name:", "asked", "cluster.yaml:1"]
    assert len({line.index("cluster.yaml:") for line in rows}) == 1
    assert "max_workers: 7" in done.stdout
    assert "command line" in done.stdout
    assert "cluster.yaml:3, legacy head_node" in done.stdout


def test_gives_a_program_the_spec_and_its_origins(cluster: str) -> None:
    done = CliRunner().invoke(main, ["config", cluster, "--json"])
    report = json.loads(done.stdout)
    assert report["spec"]["cluster_name"] == "asked"
    assert report["origins"]["cluster_name"] == "cluster.yaml:1"


def test_without_a_file_shows_the_cluster_that_up_would_start() -> None:
    done = CliRunner().invoke(main, ["config"])
    assert "type: embedded" in done.stdout


def test_a_wrong_file_is_told_on_stderr_with_exit_code_2(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text("provider: {type: awz}\n")
    done = CliRunner().invoke(main, ["config", str(path)])
    assert done.exit_code == 2
    assert "wrong.yaml:1  provider.type  'awz' is not known" in done.stderr
    assert done.stdout == ""
