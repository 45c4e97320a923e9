"""Node provider classes as people write them: duck-typed, without Ray, with one cloud in a file,
so that a new instance sees what an earlier one has launched. Each is sloppy in its own way."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any


class FileCloud:
    """Nodes in a JSON file. `calls` has the names of the calls in their order, with threads."""

    calls: list[tuple[str, str]] = []  # noqa: RUF012

    def __init__(self, provider_config: dict[str, Any], cluster_name: str) -> None:
        self.note("__init__")
        self.config = provider_config
        self.cluster_name = cluster_name
        self.file = Path(provider_config["file"])

    def note(self, name: str) -> None:
        FileCloud.calls.append((name, threading.current_thread().name))

    def nodes(self) -> dict[str, Any]:
        return json.loads(self.file.read_text()) if self.file.exists() else {}

    def save(self, nodes: dict[str, Any]) -> None:
        self.file.write_text(json.dumps(nodes))

    def non_terminated_nodes(self, tag_filters: dict[str, str]) -> list[str]:
        self.note("non_terminated_nodes")
        return list(self.nodes())

    def is_running(self, node_id: str) -> bool:
        return True

    def is_terminated(self, node_id: str) -> bool:
        return node_id not in self.nodes()

    def node_tags(self, node_id: str) -> dict[str, str]:
        return dict(self.nodes()[node_id]["tags"])

    def internal_ip(self, node_id: str) -> str | None:
        return f"10.9.0.{node_id.partition('-')[2]}"

    def external_ip(self, node_id: str) -> str | None:
        return None

    def safe_to_scale(self) -> bool:
        self.note("safe_to_scale")
        return True

    def post_process(self) -> None:
        self.note("post_process")

    def set_node_tags(self, node_id: str, tags: dict[str, str]) -> None:
        raise AssertionError("this cloud has no tags to set")

    def create_node(self, node_config: Any, tags: dict[str, str], count: int) -> Any:
        self.note("create_node")
        nodes = self.nodes()
        first = max((int(id.partition("-")[2]) for id in nodes), default=0) + 1
        new = {f"n-{first + i}": {"tags": dict(tags), "at": time.time()} for i in range(count)}
        self.save({**nodes, **new})
        return dict(new)

    def terminate_node(self, node_id: str) -> None:
        self.note("terminate_node")
        nodes = self.nodes()
        nodes.pop(node_id)
        self.save(nodes)


class ReturnsNothing(FileCloud):
    """Its create call returns None."""

    def create_node(self, node_config: Any, tags: dict[str, str], count: int) -> Any:
        super().create_node(node_config, tags, count)


class LosesTags(ReturnsNothing):
    """It keeps what kind of node it is, and nothing else."""

    def node_tags(self, node_id: str) -> dict[str, str]:
        tags = super().node_tags(node_id)
        return {key: tags[key] for key in ("ray-node-type", "ray-user-node-type")}


class ListsLate(ReturnsNothing):
    """A new node is listed after a while."""

    def non_terminated_nodes(self, tag_filters: dict[str, str]) -> list[str]:
        self.note("non_terminated_nodes")
        lag = float(self.config.get("lag", 0.5))
        return [id for id, node in self.nodes().items() if node["at"] + lag < time.time()]


class OnlyOne(ReturnsNothing):
    """It launches one node, however many are requested."""

    def create_node(self, node_config: Any, tags: dict[str, str], count: int) -> Any:
        super().create_node(node_config, tags, 1)


class NoAddressYet(FileCloud):
    """A new node has no address for a while; reading it may even fail."""

    def internal_ip(self, node_id: str) -> str | None:
        if self.nodes()[node_id]["at"] + 0.5 > time.time():
            raise KeyError(node_id)
        return super().internal_ip(node_id)


class Hangs(FileCloud):
    """Its create call does not return before it is released."""

    released = threading.Event()

    def create_node(self, node_config: Any, tags: dict[str, str], count: int) -> Any:
        super().create_node(node_config, tags, count)
        self.released.wait(60)


class Batches(FileCloud):
    """Like Ray's BatchingNodeProvider: a listing forgets what was requested and not submitted."""

    def __init__(self, provider_config: dict[str, Any], cluster_name: str) -> None:
        super().__init__(provider_config, cluster_name)
        self.requested: list[tuple[dict[str, str], int]] = []

    def non_terminated_nodes(self, tag_filters: dict[str, str]) -> list[str]:
        self.requested = []
        return super().non_terminated_nodes(tag_filters)

    def create_node(self, node_config: Any, tags: dict[str, str], count: int) -> Any:
        self.requested.append((tags, count))

    def post_process(self) -> None:
        self.note("post_process")
        for tags, count in self.requested:
            FileCloud.create_node(self, {}, tags, count)
        self.requested = []


class Prints(FileCloud):
    """It prints what it does, as Ray's own classes do."""

    def create_node(self, node_config: Any, tags: dict[str, str], count: int) -> Any:
        print(f"creating {count} nodes")
        return super().create_node(node_config, tags, count)


class NoAddress(FileCloud):
    """Its nodes have no address that it knows."""

    def internal_ip(self, node_id: str) -> str | None:
        return None


class FillsIn(FileCloud):
    """It creates a network, a key and a role, and knows what its nodes have."""

    @staticmethod
    def fillout_available_node_types_resources(config: dict[str, Any]) -> dict[str, Any]:
        for node_type in config["available_node_types"].values():
            node_type["resources"] = {"CPU": 64}
        return config

    @staticmethod
    def bootstrap_config(config: dict[str, Any]) -> dict[str, Any]:
        FileCloud.calls.append(("bootstrap_config", ""))
        config["auth"]["ssh_private_key"] = "/keys/made"
        config["head_node"] = {"role": "may launch"}
        for node_type in config["available_node_types"].values():
            node_type["node_config"]["network"] = "net-1"
        return config

    def prepare_for_head_node(self, config: dict[str, Any]) -> dict[str, Any]:
        config["provider"]["prepared"] = True
        return config

    def create_node(self, node_config: Any, tags: dict[str, str], count: int) -> Any:
        created = super().create_node(node_config, tags, count)
        nodes = self.nodes()
        for id in created:
            nodes[id]["config"] = node_config
        self.save(nodes)
        return created


class LaunchError(Exception):
    """As Ray's NodeLaunchException: a category and a description."""

    def __init__(self, category: str, description: str) -> None:
        super().__init__(f"Node Launch Exception ({category}): {description}")
        self.category = category
        self.description = description


class Refuses(FileCloud):
    """It raises what the file says."""

    def create_node(self, node_config: Any, tags: dict[str, str], count: int) -> Any:
        raise LaunchError(self.config["category"], "no")


class OwnRunner:
    """A command runner that runs commands on this machine, as `run` of Ray's interface."""

    def __init__(self, node_id: str) -> None:
        self.node_id = node_id

    def run(self, cmd: str, timeout: int = 120, with_output: bool = False, **_: Any) -> str:
        import subprocess

        done = subprocess.run(cmd, shell=True, capture_output=True, timeout=timeout, check=True)
        return f"Warning: a banner\n{done.stdout.decode()}" if with_output else ""

    def run_rsync_up(self, source: str, target: str, options: Any = None) -> None:
        import subprocess

        subprocess.run(["cp", "-r", source, target], check=True)

    def remote_shell_command_str(self) -> str:
        return f"echo shell of {self.node_id}"


class HasRunner(FileCloud):
    """It runs commands in its own way."""

    def get_command_runner(self, log_prefix: str, node_id: str, **_: Any) -> OwnRunner:
        return OwnRunner(node_id)
