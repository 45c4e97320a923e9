"""The launch hash, which decides whether a changed cluster file needs new instances.

It is computed from the spec alone, so the head gets the same hash as the laptop. Instances carry it
for their whole life: what goes into it must not change from one version to the next. The applied
state on a node records everything else.
"""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

from shoal.spec.cluster_spec import ClusterSpec


def launch_hash(spec: ClusterSpec, node_type: str) -> str:
    """The hash of what an instance of this type is launched with: its node_config, its SSH user and
    its new volumes."""
    parts = [spec.node_types[node_type].node_config, spec.auth.ssh_user]
    new_volumes = [
        [v.device, v.size, v.type, v.iops, v.throughput, v.keep]
        for v in spec.volumes_for(node_type).values()
        if v.size
    ]
    return short_hash([*parts, new_volumes] if new_volumes else parts)


def is_outdated(spec: ClusterSpec, node_type: str, recorded_hash: str) -> bool:
    """Whether the launch settings of an instance changed in the file since it was launched. An
    instance without a recorded launch hash, or of a type that is not in the file, counts as
    current."""
    known = recorded_hash and node_type in spec.node_types
    return bool(known) and recorded_hash != launch_hash(spec, node_type)


def short_hash(value: Any) -> str:
    """A hash of lowercase letters and digits, short enough for a cloud's tag or label."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).digest()[:20]
    return base64.b32encode(digest).decode().lower()
