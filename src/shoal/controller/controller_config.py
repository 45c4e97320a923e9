"""What `up` hands to the controller: the cluster's spec, and where things are on the head.

It lies in the controller's directory and is replaced as a whole. A new one reaches the running
controller at its next look; one that is taken away tells it to end.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal import spec
from shoal.controller.paths import HANDOVER
from shoal.remote.known_hosts import HostKeys
from shoal.spec.cluster_spec import ClusterSpec


@dataclass(frozen=True)
class ControllerConfig:
    """`home` is where providers keep local state on the head; `files_digest` stands for what the
    laptop has sent, and the address is that of the GCS. `host_keys` are those by which the laptop
    knows the machines."""

    spec: ClusterSpec
    files_digest: str
    home: str
    gcs_address: str
    host_keys: HostKeys = field(default_factory=dict)

    @property
    def is_of_one_machine(self) -> bool:
        """Whether all nodes share the head's machine, as embedded ones do: none can lose it."""
        return self.gcs_address.startswith("127.")

    def to_json(self) -> dict[str, Any]:
        """As data that `json.dumps` takes."""
        return {
            "spec": spec.to_json(self.spec),
            "files_digest": self.files_digest,
            "home": self.home,
            "gcs_address": self.gcs_address,
            "host_keys": dict(self.host_keys),
        }


def read(directory: Path, name: str = HANDOVER) -> ControllerConfig | None:
    """The current handover, or one kept under another name; None when there is none any more.
    Raises ValueError for a file that is not one."""
    try:
        data = json.loads((directory / name).read_text())
    except FileNotFoundError:
        return None
    return ControllerConfig(**{**data, "spec": spec.from_json(data["spec"])})


def stamp(directory: Path) -> int | None:
    """Something that changes whenever the handover does; None when there is none."""
    try:
        return (directory / HANDOVER).stat().st_mtime_ns
    except FileNotFoundError:
        return None
