"""What a class filled in when the head was launched (keys, networks, resources), kept on this
machine: Ray's classes create these things on the laptop, and the head only uses them."""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

from shoal.core.atomic_write import write_atomically
from shoal.core.logs import suppress_and_log
from shoal.providers.external import ray_config
from shoal.spec.cluster_spec import ClusterSpec

_log = logging.getLogger(__name__)


class HeadConfig:
    """The config in a file of this cluster. One that was made from another cluster file does not
    count."""

    def __init__(self, file: Path, spec: ClusterSpec) -> None:
        self._file = file
        self._spec = spec
        config = ray_config.cluster_config(spec)
        parts = [config[key] for key in ("provider", "auth", "available_node_types")]
        text = json.dumps(parts, sort_keys=True, default=str)
        self._digest = hashlib.sha256(text.encode()).hexdigest()

    def read(self) -> ClusterSpec | None:
        """The spec with what the class filled in; None if it has not done so yet."""
        config = self._read()
        return None if config is None else ray_config.with_config(self._spec, config)

    def apply(self, spec: ClusterSpec) -> ClusterSpec:
        """A spec of the same cluster file with what the class has filled in, as far as it has."""
        config = self._read()
        return spec if config is None else ray_config.with_config(spec, config)

    def _read(self) -> dict[str, Any] | None:
        data: dict[str, Any] = {}
        with suppress_and_log(_log, f"read {self._file}", FileNotFoundError, ValueError):
            data = json.loads(self._file.read_text())
        return data.get("config") if data.get("digest") == self._digest else None

    def write(self, config: dict[str, Any]) -> ClusterSpec:
        """Keep a config that the class has filled in."""
        keys = ("provider", "auth", "available_node_types", "head_node")
        kept = {key: config.get(key) for key in keys}
        text = json.dumps({"digest": self._digest, "config": kept}, default=str)
        self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(self._file, text)
        return ray_config.with_config(self._spec, json.loads(text)["config"])
