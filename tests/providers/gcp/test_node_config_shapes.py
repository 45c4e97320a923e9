"""A `node_config` that cannot be passed to Compute Engine is reported with its place."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from scripts import gcp_instance_fields

from shoal import spec
from shoal.providers.gcp.preflight.node_config_shapes import check_node_configs
from shoal.spec.cluster_spec import ClusterSpec
from shoal.spec.yaml_source import YamlText

FILE = "{cluster_name: c, provider: {type: gcp, region: us-west1, project_id: p}}"


def with_config(config: dict[str, Any]) -> ClusterSpec:
    loaded = spec.load(YamlText("c.yaml", FILE)).spec
    worker = replace(loaded.node_types["ray_worker_small"], node_config=config)
    return replace(loaded, node_types={**loaded.node_types, "ray_worker_small": worker})


@pytest.mark.parametrize(
    ("config", "path", "place", "fix"),
    [
        (
            {"machinetype": "n1"},
            "machinetype",
            ("machinetype",),
            "replace machinetype by machineType",
        ),
        ({"disks": {"boot": True}}, "disks", ("disks",), "write it as a list"),
        (
            {"disks": [{"initializeParams": {"diskSizeGB": 5}}]},
            "disks[0].initializeParams.diskSizeGB",
            ("disks",),
            "replace diskSizeGB by diskSizeGb",
        ),
        ({"scheduling": "spot"}, "scheduling", ("scheduling",), "scheduling: {"),
        (
            {"scheduling": {"preemptible": "yes"}},
            "scheduling.preemptible",
            ("scheduling", "preemptible"),
            "preemptible: true",
        ),
        ({"labels": {"team": 3}}, "labels.team", ("labels", "team"), 'team: "3"'),
        ({"UserData": "x"}, "UserData", ("UserData",), "remove UserData"),
        (
            {"guestAccelerators": [{"acceleratorType": "t4", "acceleratorCount": "two"}]},
            "guestAccelerators[0].acceleratorCount",
            ("guestAccelerators",),
            "acceleratorCount: 1",
        ),
    ],
)
def test_a_wrong_value_is_reported_with_its_place_and_a_fix(
    config: dict[str, Any], path: str, place: tuple[str, ...], fix: str
) -> None:
    (finding,) = check_node_configs(with_config(config))
    assert finding.what == f"node_config cannot be passed to Compute Engine: {path}"
    assert finding.at == ("node_types", "ray_worker_small", "node_config", *place)
    assert finding.fix.startswith(fix)


@pytest.mark.parametrize(
    "config",
    [
        {"scheduling": [{"preemptible": True}]},
        {"disks": [{"boot": True, "initializeParams": {"diskSizeGb": "50"}}]},
        {"networkInterfaces": [{"kind": "compute#networkInterface", "aliasIpRanges": []}]},
        {"sourceInstanceTemplate": "global/instanceTemplates/worker", "KeyName": "mine"},
        {"metadata": {"items": [{"key": "a", "value": "b"}]}, "tags": None},
    ],
)
def test_what_ray_and_google_accept_is_not_reported(config: dict[str, Any]) -> None:
    assert check_node_configs(with_config(config)) == []


def test_tpu_nodes_of_ray_are_refused_with_another_way() -> None:
    (finding,) = check_node_configs(with_config({"acceleratorType": "v2-8", "runtimeVersion": "x"}))
    assert "TPU" in finding.what
    assert "machineType: ct5lp-hightpu-1t" in finding.fix


def test_the_fields_are_those_of_googles_discovery_document() -> None:
    fields = json.loads(gcp_instance_fields.FILE.read_text())
    assert fields == gcp_instance_fields.instance_fields()
