"""Listed hosts, and a laptop with the real `shoal`."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import dataclass, field
from typing import Any

from tests.simcloud.cloud import SimCloud
from tests.simcloud.console import Result
from tests.simcloud.hosts import Host

SHOAL = "shoal"  # this project's: its environment is first on every simulated PATH
USE_OUR_RAY = f"echo 'export PATH=\"{sys.prefix}/bin:$PATH\"' >> ~/.bashrc"

# A stand-in for Ray, for tests of the launcher: processes with the names of Ray's daemons, which
# listen on the head's port and start at once. They accept no connection, so each probe of the port
# stays in the backlog.
_DAEMON = (
    "import socket, time; s = socket.create_server(('::', {port}), family=socket.AF_INET6, "
    "dualstack_ipv6=True, backlog=4096); time.sleep(9999)"
)


def _stand_in(*daemons: tuple[str, int]) -> list[str]:
    return [
        f"ln -sf /usr/bin/python3 ~/{name}; "
        f"(setsid ~/{name} -c {shlex.quote(_DAEMON.format(port=port))} > /dev/null 2>&1 &)"
        for name, port in daemons
    ]


QUICK_START: dict[str, Any] = {
    "head_start_ray_commands": _stand_in(("gcs_server", 6379), ("raylet", 0)),
    "worker_start_ray_commands": _stand_in(("raylet", 0)),
    # The controller needs a GCS that answers.
    "shoal": {"controller": False},
}

# A Ray program that prints on which nodes it ran. Each task is bound to a node, because Ray might
# run all of them on one.
ON_EVERY_NODE = """
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On
ray.init(log_to_driver=False)

@ray.remote(num_cpus=0)
def where():
    return ray.util.get_node_ip_address()

nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
everywhere = [where.options(scheduling_strategy=On(node, soft=False)) for node in nodes]
print(sorted(ray.get([task.remote() for task in everywhere])))
"""

# A Ray program with N tasks that take a whole node each. It writes /tmp/held-N on the head when all
# of them run, and they end when there is a file /tmp/release there.
HOLD_NODES = """
import os, pathlib, sys, time, ray
ray.init(log_to_driver=False, logging_level="ERROR")
count = int(sys.argv[1])

# A call that was under way when a link was cut is repeated.
@ray.remote(num_cpus=0, resources={"node:__internal_head__": 0.001}, max_task_retries=-1)
class Head:
    def __init__(self):
        self.nodes = set()
    def is_released(self, node):
        self.nodes.add(node)
        if len(self.nodes) == count:
            pathlib.Path(f"/tmp/held-{count}").touch()
        return pathlib.Path("/tmp/release").exists()

@ray.remote(num_cpus=os.cpu_count(), max_retries=-1)
def hold(head):
    while not ray.get(head.is_released.remote(ray.util.get_node_ip_address())):
        time.sleep(0.2)

head = Head.remote()
ray.get([hold.remote(head) for _ in range(count)])
print("all done")
"""


def read_gcs(address: str) -> str:
    """A program that reads the cluster state from the GCS."""
    return (
        "from ray._raylet import GcsClient; "
        f"GcsClient(address='{address}').get_cluster_resource_state(timeout_s=10)"
    )


@dataclass
class Bed:
    """Hosts, a laptop, and a cluster file on it."""

    cloud: SimCloud
    laptop: Host
    hosts: list[Host]
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def head(self) -> Host:
        return self.hosts[0]

    @property
    def workers(self) -> list[Host]:
        return self.hosts[1:]

    async def write(self, name: str = "c.yaml", **settings: Any) -> None:
        """Write the cluster file; later settings win."""
        ours = {**self.settings.get("shoal", {}), **settings.pop("shoal", {})}
        self.settings.update(settings, shoal=ours)
        base = {
            "cluster_name": "mine",
            "provider": {
                "type": "local",
                "head_ip": self.head.address,
                "worker_ips": [host.address for host in self.workers],
            },
            "auth": {"ssh_user": "ubuntu"},
        }
        text = json.dumps({**base, **self.settings})
        (await self.laptop.run(f"cat > {name}", stdin=text)).require("writing the cluster file")

    async def shoal(self, command: str, *, timeout: float = 300) -> Result:
        return await self.laptop.run(f"{SHOAL} {command}", timeout=timeout)

    async def up(self, options: str = "", *, timeout: float = 300) -> list[dict[str, Any]]:
        """`shoal up` that must succeed; its events."""
        done = await self.shoal(f"up c.yaml --yes --json {options}", timeout=timeout)
        assert done.code == 0, done.stdout + done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    async def read(self, host: Host, command: str) -> str:
        """The output of a command on a host, run as the user that Shoal logs in as."""
        return (await host.run(command, user="ubuntu")).require(command).stdout.strip()


def actions(events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """The steps of the plan among events, as (action, subject)."""
    return [(e["action"], e["subject"]) for e in events if e["event"] == "plan"]


def phases(events: list[dict[str, Any]], node: str) -> list[str]:
    """The phases that a node went through, without repetitions."""
    entered = [e["phase"] for e in events if e["event"] == "node" and e["node"] == node]
    return list(dict.fromkeys(entered))
