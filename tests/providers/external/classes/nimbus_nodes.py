"""Nimbus as a node provider class of Ray's API, as somebody else would write it: it knows nothing
of Shoal. The subclasses misbehave."""

from __future__ import annotations

import json
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from ray.autoscaler.node_launch_exception import NodeLaunchException
from ray.autoscaler.node_provider import NodeProvider


class NimbusNodes(NodeProvider):  # type: ignore[misc]
    """Nodes of one cluster. Their tags are labels of the cloud."""

    def __init__(self, provider_config: dict[str, Any], cluster_name: str) -> None:
        super().__init__(provider_config, cluster_name)
        self._records: dict[str, dict[str, Any]] = {}

    def _call(self, method: str, path: str, body: object = None) -> Any:
        data = json.dumps(body).encode() if body is not None else None
        url = self.provider_config["url"] + path
        with urllib.request.urlopen(urllib.request.Request(url, data, method=method)) as reply:
            return json.load(reply)

    def non_terminated_nodes(self, tag_filters: dict[str, str]) -> list[str]:
        query = urllib.parse.quote(self.cluster_name)
        records = self._call("GET", f"/instances?cluster={query}")
        self._records = {record["id"]: record for record in records}
        return [id for id in self._records if tag_filters.items() <= self.node_tags(id).items()]

    def is_running(self, node_id: str) -> bool:
        return bool(self._records[node_id]["state"] == "running")

    def is_terminated(self, node_id: str) -> bool:
        return node_id not in self._records

    def node_tags(self, node_id: str) -> dict[str, str]:
        return dict(self._records[node_id]["labels"])

    def internal_ip(self, node_id: str) -> str:
        return str(self._records[node_id]["address"])

    external_ip = internal_ip

    def create_node(self, node_config: dict[str, Any], tags: dict[str, str], count: int) -> None:
        labels = {**tags, "cluster": self.cluster_name}
        self._call(
            "POST", "/instances", {"size": node_config["size"], "count": count, "labels": labels}
        )

    def set_node_tags(self, node_id: str, tags: dict[str, str]) -> None:
        raise NotImplementedError

    def terminate_node(self, node_id: str) -> None:
        self._call("DELETE", f"/instances/{node_id}")


class _Once(NimbusNodes):
    """The base of classes that misbehave in their first launch of workers."""

    def _is_first(self, tags: dict[str, str]) -> bool:
        mark = Path("~/misbehaved").expanduser()
        if tags["ray-node-type"] == "head" or mark.exists():
            return False
        mark.touch()
        return True


class HangingNodes(_Once):
    """The first launch of workers creates them, and never returns."""

    def create_node(self, node_config: dict[str, Any], tags: dict[str, str], count: int) -> None:
        first = self._is_first(tags)
        super().create_node(node_config, tags, count)
        while first:
            time.sleep(1)


class RaisingNodes(_Once):
    """The first launch of workers is refused."""

    def create_node(self, node_config: dict[str, Any], tags: dict[str, str], count: int) -> None:
        if self._is_first(tags):
            raise NodeLaunchException("no stock", "nothing left today", None)
        super().create_node(node_config, tags, count)


class LosesTags(NimbusNodes):
    """It keeps the kind of its nodes, and no other tag."""

    def node_tags(self, node_id: str) -> dict[str, str]:
        tags = super().node_tags(node_id)
        return {key: tags[key] for key in ("ray-node-type", "ray-user-node-type")}
