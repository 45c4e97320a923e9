"""A laptop with the file of a cluster whose nodes a class of somebody else launches."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from tests.providers.local.ssh_bed import USE_OUR_RAY
from tests.simcloud.cloud import SimCloud
from tests.simcloud.console import Result
from tests.simcloud.host_image import PROJECT
from tests.simcloud.hosts import Host

CLASSES = f"{PROJECT}/tests/providers/external/classes"
RAY = "--disable-usage-stats --object-store-memory=100000000"

# Two actors that each take a whole worker, at the same time.
ACTORS = """
import ray
ray.init(log_to_driver=False, logging_level="ERROR")

@ray.remote(num_cpus=1)
class Worker:
    def where(self):
        return ray.get_runtime_context().get_node_id()

workers = [Worker.remote() for _ in range(2)]
print("done on", len(set(ray.get([worker.where.remote() for worker in workers]))))
"""


@dataclass
class Bed:
    """A cloud, and a laptop with a cluster file."""

    cloud: SimCloud
    laptop: Host
    environment: str = field(default="", init=False)

    async def write(self, provider: dict[str, Any], **settings: Any) -> None:
        def node_type(cpus: int, **more: Any) -> dict[str, Any]:
            return {"node_config": {"size": "small"}, "resources": {"CPU": cpus}, **more}

        content = {
            "cluster_name": "cloudy",
            "max_workers": 2,
            "provider": provider,
            "auth": {"ssh_user": "ubuntu", "ssh_private_key": "~/.ssh/id_ed25519"},
            "available_node_types": {
                "head": node_type(0),
                "worker": node_type(1, min_workers=1, max_workers=2),
            },
            "head_node_type": "head",
            "idle_timeout_minutes": 0.1,
            "upscaling_speed": 10,
            "file_mounts": {"~/code": "code"},
            "setup_commands": [USE_OUR_RAY],
            "head_start_ray_commands": [f"ray start --head --port=6379 {RAY}"],
            "worker_start_ray_commands": [f"ray start --address=$RAY_HEAD_IP:6379 {RAY}"],
            **settings,
            "shoal": {"provider_path": CLASSES, **settings.get("shoal", {})},
        }
        await self.laptop.run("mkdir -p code; cat > code/actors.py", stdin=ACTORS)
        done = await self.laptop.run("cat > c.yaml", stdin=json.dumps(content))
        done.require("writing the cluster file")

    async def shoal(self, command: str, timeout: float = 280) -> Result:
        return await self.laptop.run(f"{self.environment} shoal {command}", timeout=timeout)

    async def up(self) -> list[dict[str, Any]]:
        up = f"{self.environment} timeout 400 shoal up c.yaml --yes --json -v"
        done = await self.laptop.run(up, timeout=420)
        assert done.code == 0, done.stdout + done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    async def assert_ready(self, nodes: int) -> None:
        """Whether `shoal status` shows so many nodes, all of them ready."""
        done = await self.shoal("status c.yaml --json")
        assert done.code == 0, done.stdout + done.stderr
        status = json.loads(done.stdout)
        phases = [node["phase"] for node in status["nodes"]]
        assert phases == ["ready"] * nodes, done.stdout

    async def run_actors(self) -> None:
        done = await self.shoal("exec c.yaml 'python code/actors.py'")
        assert "done on 2" in done.stdout, done.stdout + done.stderr

    async def down(self) -> None:
        done = await self.shoal("down c.yaml --yes")
        assert done.code == 0, done.stdout + done.stderr
