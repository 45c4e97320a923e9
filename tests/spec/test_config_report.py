"""The report behind `shoal config`."""

from __future__ import annotations

import json

from shoal.spec import config_report, default_embedded, to_json

from .conftest import loaded

TEXT = """\
cluster_name: shown
provider: {type: aws, region: us-west-2}
setup_commands: [pip install x]
"""


def test_every_value_is_shown_with_its_origin() -> None:
    rows = dict(config_report.outline(loaded(TEXT)))
    assert rows["cluster_name: shown"] == "cluster.yaml:1"
    assert rows["    - pip install x"] == "cluster.yaml:3"
    assert rows["    - python3 -c 'import boto3' || pip install 'boto3>=1.34'"] == "default for aws"
    assert rows["  idle_timeout_s: 300"] == "default"
    assert rows["node_types:"] == ""


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
