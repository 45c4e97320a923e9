"""The controller's config: the cluster's spec, as `shoal up` wants it, and where things are on the
head.

The file is replaced as a whole. A running controller applies a new one at its next iteration, and
exits when the file is removed.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shoal import spec as specs
from shoal.controller.paths import CONFIG, PREPARED_CONFIG
from shoal.remote.known_hosts import HostKeys
from shoal.spec.cluster_spec import ClusterSpec, ProviderSpec

# How long a controller that is prepared waits for its config.
_PREPARED_SECONDS = 1800.0
CLUSTER_KEY = "~/.shoal/cluster_key"


@dataclass(frozen=True)
class ControllerConfig:
    """`files_digest` identifies the files that the laptop has sent; `home` is where providers keep
    local state on the head; `host_keys` are the SSH host keys that the laptop has pinned."""

    spec: ClusterSpec
    files_digest: str
    home: str
    gcs_address: str
    host_keys: HostKeys = field(default_factory=dict)

    @property
    def is_single_machine(self) -> bool:
        """Whether all nodes run on the head's machine, as embedded ones do: they need no lease."""
        return self.gcs_address.startswith("127.")

    def to_json(self) -> dict[str, Any]:
        """As data for `json.dumps`."""
        return {
            "spec": specs.to_json(self.spec),
            "files_digest": self.files_digest,
            "home": self.home,
            "gcs_address": self.gcs_address,
            "host_keys": dict(self.host_keys),
        }


def read(directory: Path, name: str = CONFIG) -> ControllerConfig | None:
    """The config in a file of this directory; None when there is none. Raises ValueError for an
    invalid file."""
    try:
        data = json.loads((directory / name).read_text())
    except FileNotFoundError:
        return None
    return ControllerConfig(**{**data, "spec": specs.from_json(data["spec"])})


def stamp(directory: Path) -> int | None:
    """A number that changes whenever the config is replaced; None when there is no config."""
    try:
        return (directory / CONFIG).stat().st_mtime_ns
    except FileNotFoundError:
        return None


def is_prepared(directory: Path) -> bool:
    """Whether `shoal up` has prepared a controller, and deploys it soon."""
    try:
        prepared_at = (directory / PREPARED_CONFIG).stat().st_mtime
    except FileNotFoundError:
        return False
    return time.time() - prepared_at < _PREPARED_SECONDS


def should_run(directory: Path) -> bool:
    """Whether there is or will be a config."""
    return stamp(directory) is not None or is_prepared(directory)


def spec_on_head(spec: ClusterSpec) -> ClusterSpec:
    """The spec with which a program on the head reaches and bootstraps nodes: with the cluster's
    own key, without the laptop's proxies, and with files where `up` has put them. Not for a
    cluster on a single machine, which needs no changes."""
    settings = {k: v for k, v in spec.provider.settings.items() if k != "external_head_ip"}
    mounts = {path: str(Path(path).expanduser()) for path in spec.files.mounts}
    return replace(
        spec,
        provider=ProviderSpec(spec.provider.type, settings),
        auth=replace(
            spec.auth,
            ssh_private_key=CLUSTER_KEY,
            ssh_proxy_command=None,
            ssh_proxy_use_node_id=False,
        ),
        files=replace(spec.files, mounts=mounts),
        shoal=replace(spec.shoal, via_head=False),
    )
