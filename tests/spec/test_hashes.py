"""The launch hash."""

from __future__ import annotations

import json

from shoal.spec import from_json, launch_hash, to_json

from .conftest import loaded

CLUSTER = """
    provider: {type: aws, region: us-west-2}
    available_node_types:
      ray.head.default: {node_config: {InstanceType: m5.large}}
      gpu: {node_config: {InstanceType: p3.2xlarge}, max_workers: 1}
    setup_commands: [pip install this]
"""


def test_another_instance_type_only_changes_the_launch_hash_of_its_node_type() -> None:
    before, after = loaded(CLUSTER).spec, loaded(CLUSTER.replace("p3.2xlarge", "p4d")).spec
    assert launch_hash(before, "gpu") != launch_hash(after, "gpu")
    assert launch_hash(before, "ray.head.default") == launch_hash(after, "ray.head.default")


def test_scaling_limits_and_commands_do_not_change_the_launch_hash() -> None:
    before = loaded(CLUSTER).spec
    after = loaded(CLUSTER.replace("max_workers: 1", "max_workers: 2").replace("this", "that")).spec
    assert launch_hash(before, "gpu") == launch_hash(after, "gpu")


def test_the_head_computes_the_same_launch_hash_from_the_spec_it_receives() -> None:
    """Otherwise `up` would replace what the controller has launched."""
    spec = loaded(CLUSTER + "    shoal: {volumes: {/data: {size: 9}}}\n").spec
    received = from_json(json.loads(json.dumps(to_json(spec))))
    for name in spec.node_types:
        assert launch_hash(received, name) == launch_hash(spec, name)


def test_the_launch_hash_is_the_same_in_every_version() -> None:
    """Otherwise a new version would replace every instance that an older one has launched."""
    spec = loaded(CLUSTER).spec
    assert launch_hash(spec, "gpu") == "edur6a5cvbhoebyhcpyo5jjedogd5b2o"
