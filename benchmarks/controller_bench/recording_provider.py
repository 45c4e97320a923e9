"""A node provider for Ray's autoscaler that only records when a node is launched. Ray loads it by
name; its nodes exist only in memory."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from ray.autoscaler.node_provider import NodeProvider
from ray.autoscaler.tags import TAG_RAY_USER_NODE_TYPE

LAUNCH_LOG = "SHOAL_BENCH_LAUNCH_LOG"


class RecordingProvider(NodeProvider):  # type: ignore[misc]
    """Accepts every request at once."""

    def __init__(self, provider_config: dict[str, Any], cluster_name: str) -> None:
        super().__init__(provider_config, cluster_name)
        self._nodes: dict[str, dict[str, str]] = {
            provider_config["head"]: {
                "ray-node-type": "head",
                "ray-user-node-type": "head",
                "ray-node-status": "up-to-date",
                "ray-node-name": "head",
            }
        }

    def create_node(self, node_config: Any, tags: dict[str, str], count: int) -> dict[str, Any]:
        with Path(os.environ[LAUNCH_LOG]).open("a") as launch_log:
            launch_log.write(f"{tags[TAG_RAY_USER_NODE_TYPE]} {time.time()}\n")
        new = {f"n{len(self._nodes) + i}": dict(tags) for i in range(count)}
        self._nodes.update(new)
        return new

    def create_node_with_resources_and_labels(
        self, node_config: Any, tags: dict[str, str], count: int, resources: Any, labels: Any
    ) -> dict[str, Any]:
        return self.create_node(node_config, tags, count)

    def non_terminated_nodes(self, tag_filters: dict[str, str]) -> list[str]:
        filters = tag_filters.items()
        return [id for id, tags in self._nodes.items() if filters <= tags.items()]

    def is_running(self, node_id: str) -> bool:
        return node_id in self._nodes

    def is_terminated(self, node_id: str) -> bool:
        return node_id not in self._nodes

    def node_tags(self, node_id: str) -> dict[str, str]:
        return self._nodes[node_id]

    def set_node_tags(self, node_id: str, tags: dict[str, str]) -> None:
        self._nodes[node_id].update(tags)

    def external_ip(self, node_id: str) -> str:
        return node_id

    def internal_ip(self, node_id: str) -> str:
        return node_id

    def terminate_node(self, node_id: str) -> None:
        self._nodes.pop(node_id, None)

    @staticmethod
    def bootstrap_config(cluster_config: dict[str, Any]) -> dict[str, Any]:
        return cluster_config
