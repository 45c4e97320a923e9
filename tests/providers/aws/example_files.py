"""Cluster files of users: Ray's own examples for AWS, and those of the documents with the original
requirements. Each is used unchanged, except for what no test can have: placeholders, instance types
that are no longer offered, other people's images, and more nodes than this computer can run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from tests.providers.local.ssh_bed import QUICK_START, USE_OUR_RAY
from tests.spec.conftest import SHARED
from tests.spec.test_seed_snippets import SNIPPETS

# A git repository on the laptop, for the file that checks out a branch.
REPOSITORY, BRANCH = "/home/me/project", "main"
# It replaces the public repository on every node.
_ORIGIN = "/tmp/origin/project.git"

_PLACEHOLDERS = {
    "<your instance type>": "m5.large",
    "/path/to/local/repo": REPOSITORY,
    "<YOUR_BRANCH_NAME>": BRANCH,
    "<REPO_NAME>": "project",
    "https://github.com/<REPO_ORG>/project.git": _ORIGIN,
    "p2.xlarge": "g4dn.xlarge",
    "p2.8xlarge": "g4dn.12xlarge",
}
# Many nodes share one computer.
_RAY_START = re.compile(r"\bray start\b")
_SMALL = "ray start --num-cpus=1 --object-store-memory=100000000"


@dataclass(frozen=True)
class Example:
    """A cluster file, or a part of one."""

    name: str
    text: str

    @property
    def skip(self) -> str:
        """Why it cannot be brought up in a test; empty if it can."""
        data = yaml.safe_load(self.text)
        images = [value for key, value in (data.get("docker") or {}).items() if "image" in key]
        if any(images) or "dockerd" in self.text:
            return "containers are tested elsewhere"
        if "type: external" in self.text:
            return "not a cluster on AWS"
        return ""

    def adapted(self, subnets: Sequence[str], *, real_ray: bool) -> dict[str, Any]:
        """The file's data, adapted to this account and this computer."""
        text = self.text
        for number, dummy in enumerate(("subnet-0000000", "subnet-fffffff")):
            text = text.replace(dummy, subnets[number])
        for placeholder, value in _PLACEHOLDERS.items():
            text = text.replace(placeholder, value)
        # Ray is installed already, and its environment has a script `activate`, as conda has.
        data: dict[str, Any] = yaml.safe_load(text)
        if "node_config" in data:
            data = {"available_node_types": {"ray.head.default": data}}
        data.setdefault("provider", {"type": "aws", "region": "us-west-2"})
        data.setdefault("cluster_name", self.name)
        if _ORIGIN in text:
            data["file_mounts"][_ORIGIN] = f"{REPOSITORY}/.git"
        for node_type in (data.get("available_node_types") or {}).values():
            node_type["min_workers"] = min(1, node_type.get("min_workers", 0))
        other_commands = [c for c in data.get("setup_commands") or () if "pip install" not in c]
        data["setup_commands"] = [USE_OUR_RAY, *other_commands]
        data.setdefault("head_setup_commands", [])
        return {**data, **(self._small_ray(data) if real_ray else QUICK_START)}

    def _small_ray(self, data: dict[str, Any]) -> dict[str, Any]:
        return {
            f"{role}_start_ray_commands": [
                _RAY_START.sub(_SMALL, command)
                for command in data.get(f"{role}_start_ray_commands") or _default(role)
            ]
            for role in ("head", "worker")
        }


def _default(role: str) -> list[str]:
    """The start commands of a file without any."""
    options = "--head --port=6379" if role == "head" else "--address=$RAY_HEAD_IP:6379"
    return ["ray stop", f"ulimit -n 65536; ray start {options} --object-manager-port=8076"]


EXAMPLES: dict[str, Example] = {
    example.name: example
    for example in (
        *(
            Example(path.stem, path.read_text())
            for path in sorted((SHARED / "ray-yaml" / "aws").glob("*.yaml"))
        ),
        *(Example(f"seed-{number}", text) for number, text in enumerate(SNIPPETS)),
    )
}
