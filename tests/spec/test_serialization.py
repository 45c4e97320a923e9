"""`ClusterSpec` to JSON and back."""

from __future__ import annotations

import json

import pytest

from shoal.spec import default_embedded, from_json, to_json

from .conftest import loaded

EVERYTHING = """
    cluster_name: all-of-it
    provider: {type: aws, region: eu-west-1, tags: [1, 2.5, null, true]}
    auth: {ssh_user: me, ssh_private_key: ~/.ssh/id}
    docker: {image: img, container_name: c, use_podman: true, run_options: [--privileged]}
    available_node_types:
      ray.head.default: {node_config: {InstanceType: m5.large}, resources: {CPU: 2, GPU: 0.5}}
      gpu: {max_workers: 3, labels: {kind: fast}, idle_timeout_s: 7.5, priority: -2}
    file_mounts: {/remote: /here}
    rsync_exclude: ["*.pyc"]
    initial_workers: 1
    target_utilization_fraction: 0.7
    metadata: {who: {else: 1}}
    shoal: {auth: none}
"""


def test_a_spec_survives_the_round_trip() -> None:
    spec = loaded(EVERYTHING).spec
    assert from_json(json.loads(json.dumps(to_json(spec)))) == spec


def test_the_default_spec_survives_the_round_trip() -> None:
    spec = default_embedded().spec
    assert from_json(json.loads(json.dumps(to_json(spec)))) == spec


def test_unknown_fields_of_a_later_version_are_ignored() -> None:
    spec = default_embedded().spec
    data = to_json(spec)
    assert from_json({**data, "later": 1, "shoal": {**data["shoal"], "later": []}}) == spec


@pytest.mark.parametrize("data", [None, [], 3, {}, {"cluster_name": "a"}, {"no such": 1}])
def test_data_that_is_not_a_spec_is_rejected(data: object) -> None:
    with pytest.raises(ValueError, match="not a cluster spec"):
        from_json(data)
