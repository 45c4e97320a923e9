"""The report behind `shoal config`."""

from __future__ import annotations

import json

import pytest

from shoal.spec import LoadedSpec, config_report, default_embedded, to_json

from .conftest import loaded

TEXT = """\
cluster_name: shown
provider: {type: aws, region: us-west-2}
setup_commands: [pip install x]
"""


def test_every_value_is_shown_with_its_origin() -> None:
    rows = dict(config_report.outline(loaded(TEXT)))
    assert rows["cluster_name: shown"] == "cluster.yaml:1"
    assert rows["  - pip install x"] == "cluster.yaml:3"
    assert rows["  - python3 -c 'import boto3' || pip install 'boto3>=1.34'"] == "default for aws"
    assert rows["idle_timeout_minutes: 5"] == "default"
    assert rows["available_node_types:"] == ""


def test_every_value_has_an_origin() -> None:
    for result in (loaded(TEXT), default_embedded()):
        unknown = [
            line for line, origin in config_report.outline(result) if not origin and line[-1] != ":"
        ]
        assert [line for line in unknown if line.strip() != "-"] == []


def test_origins_in_the_json_report_have_the_shape_of_the_spec() -> None:
    result = loaded(TEXT)
    report = json.loads(json.dumps(config_report.report(result)))
    assert report["spec"] == to_json(result.spec)
    assert report["origins"]["provider"]["settings"]["region"] == "cluster.yaml:2"
    assert report["origins"]["head_setup"]["setup_commands"][0] == "cluster.yaml:3"
    assert report["origins"].keys() == report["spec"].keys()


AWKWARD = """\
cluster_name: awkward
provider: {type: aws, region: us-west-2, "odd key: #1": ["", "yes", 'a: b', "- x", 1.5, null]}
head_node: {InstanceType: p2.8xlarge}
min_workers: 1
max_workers: 3
autoscaling_mode: aggressive
file_mounts: {/remote: ~/here/}
docker: {image: "x:latest", container_name: c, run_options: ["--shm-size=1g", "-e 'A=#b'"]}
setup_commands: ["echo 'two\nlines'", "# only a comment", "echo é: $HOME"]
shoal:
  autostop: 90m
  hosts: {}
  volumes: {/data: {size: 10, keep: true}}
"""
MINIMAL = "{cluster_name: m, provider: {type: local, head_ip: 192.0.2.1, worker_ips: [192.0.2.2]}}"


@pytest.mark.parametrize("text", [TEXT, AWKWARD, MINIMAL, "provider: {type: embedded}"])
def test_the_output_is_a_cluster_file_that_loads_as_the_same_spec(text: str) -> None:
    first = loaded(text)
    again = loaded(printed(first))
    assert again.spec == first.spec
    assert printed(again).count("\n") == printed(first).count("\n")


def printed(result: LoadedSpec) -> str:
    """What `shoal config` prints for a file, without its column width."""
    rows = config_report.outline(result)
    return "".join(f"{line}  # {origin}\n" if origin else f"{line}\n" for line, origin in rows)
