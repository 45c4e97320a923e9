"""The cluster that every launcher brings up: its hosts, its file, and a counter of its nodes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import shlex
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.simcloud.cloud import SimCloud
from tests.simcloud.fixtures import why_not
from tests.simcloud.hosts import Host

from shoal.ray_runtime.ray_start import start_timeout_env

HERE = Path(__file__).parent
PROJECT = "/home/me/project"

FILE_COUNT = 500
TOTAL_BYTES = 20_000_000
SETUP = (
    "echo 'export GREETING=hello' >> ~/.bashrc",
    "mkdir -p ~/results",
    "hostname > ~/results/host",
)
# Everything else is Ray's default. The object store is small because the nodes share one host.
_RAY = "--disable-usage-stats --num-cpus=1 --object-store-memory=100000000"
# Ray kills a node that takes more than 30 s to start, or to find the head registered, which happens
# when this machine is busy. Shoal sets the same.
_LONG_START_TIMEOUT = " ".join(f"{name}={value}" for name, value in start_timeout_env().items())


@dataclass(frozen=True)
class Program:
    """What is started on the hosts. `kind` is its name for `count_nodes.py`, `ray` the name or
    path of Ray's program."""

    kind: str
    head_start: str
    worker_start: str
    ray: str = "ray"


def _ray_program(ray: str) -> Program:
    start = f"{_LONG_START_TIMEOUT} {ray} start"
    return Program(
        "ray",
        f"{start} --head --port=6379 {_RAY}",
        f"{start} --address=$RAY_HEAD_IP:6379 {_RAY}",
        ray,
    )


RAY = _ray_program("ray")
RAY_BY_PATH = _ray_program(f"{sys.prefix}/bin/ray")

# Takes as long as Ray on an idle machine but uses no CPU: for more nodes than this machine could
# run. The head listens early, as Ray does, and each node reports when it has joined.
_LISTEN = "import socket, time; s = socket.create_server(('', 6379), backlog=99); time.sleep(9999)"
STAND_IN = Program(
    "stand-ins",
    'bash -c \'sleep 2; setsid python3 -c "$0" > /dev/null 2>&1 & sleep 4; '
    f"echo > /dev/udp/127.0.0.1/6380' {shlex.quote(_LISTEN)}",
    "bash -c 'sleep 6; echo > /dev/udp/$RAY_HEAD_IP/6380'",
)

# As root's on Debian, with pyenv: read by every shell, also by one that sshd starts for a command,
# and 0.1 s of CPU time each.
_SLOW_DOTFILES = {
    ".bashrc": "python3 -c 'import time\nwhile time.process_time() < 0.1: pass'\n",
    ".profile": "if [ -f ~/.bashrc ]; then . ~/.bashrc; fi\n",
}


@dataclass(frozen=True)
class BenchHosts:
    """A head and workers that have never run anything, and the laptop that uses them."""

    laptop: Host
    head: Host
    workers: tuple[Host, ...]
    program: Program = RAY

    @property
    def all_hosts(self) -> tuple[Host, ...]:
        return (self.head, *self.workers)

    def cluster_file(self, name: str) -> dict[str, Any]:
        """The cluster file, in the schema that Ray's launcher reads."""
        # Ray's autoscaler v2 never launches the second worker of such a cluster.
        use_autoscaler_v1 = "RAY_enable_autoscaler_v2=0 "
        config = " --autoscaling-config=~/ray_bootstrap_config.yaml"
        stop = f"{self.program.ray} stop"
        return {
            "cluster_name": name,
            "provider": {
                "type": "local",
                "head_ip": self.head.address,
                "worker_ips": [worker.address for worker in self.workers],
            },
            "auth": {"ssh_user": "ubuntu", "ssh_private_key": "~/.ssh/id_ed25519"},
            "min_workers": len(self.workers),
            "max_workers": len(self.workers),
            "file_mounts": {"/home/ubuntu/project": PROJECT},
            "setup_commands": list(SETUP),
            "head_start_ray_commands": [stop, use_autoscaler_v1 + self.program.head_start + config],
            "worker_start_ray_commands": [stop, self.program.worker_start],
            **self._stand_in_overrides(),
        }

    def _stand_in_overrides(self) -> dict[str, Any]:
        if self.program is not STAND_IN:
            return {}
        return {
            "head_start_ray_commands": ["ray stop", self.program.head_start],
            "worker_start_ray_commands": ["ray stop", self.program.worker_start],
            "shoal": {"controller": False},
        }

    async def write_file(self, name: str) -> str:
        """Write the cluster file on the laptop, and return its path. JSON is YAML."""
        path = f"{name}.yaml"
        text = json.dumps(self.cluster_file(name), indent=2)
        (await self.laptop.run(f"cat > {path}", stdin=text)).require("write the cluster file")
        return path


@contextlib.asynccontextmanager
async def sim_cloud() -> AsyncIterator[SimCloud]:
    """A simulated cloud whose laptop has everything the launchers need, with warm caches."""
    reason = why_not()
    if reason:
        sys.exit(f"cannot run on this machine: {reason}")
    async with SimCloud() as cloud:
        await _create_files(await cloud.laptop())
        await _warm_up(cloud)
        yield cloud


@contextlib.asynccontextmanager
async def new_hosts(
    cloud: SimCloud, workers: int, program: Program = RAY, *, slow_dotfiles: bool = False
) -> AsyncIterator[BenchHosts]:
    """Boot a head and this many workers, for the length of a `with` block."""
    laptop = await cloud.laptop()
    on_path = program is not RAY_BY_PATH
    hosts = await asyncio.gather(*(cloud.boot(ray_on_path=on_path) for _ in range(workers + 1)))
    try:
        if slow_dotfiles:
            await asyncio.gather(*(_write_slow_dotfiles(host) for host in hosts))
        yield BenchHosts(laptop, hosts[0], tuple(hosts[1:]), program)
    finally:
        await asyncio.gather(*(cloud.destroy(host) for host in hosts))


async def _write_slow_dotfiles(host: Host) -> None:
    for name, text in _SLOW_DOTFILES.items():
        command = f"cat > /home/ubuntu/{name}"
        (await host.run(command, user="ubuntu", stdin=text)).require(command)


async def _create_files(laptop: Host) -> None:
    """The files to send. Random content, so that compression cannot help."""
    rng = random.Random(0)
    root = laptop.root() / PROJECT.lstrip("/")
    for number in range(FILE_COUNT):
        path = root / f"part-{number // 50}" / f"{number}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(rng.randbytes(TOTAL_BYTES // FILE_COUNT))
    (await laptop.run(f"chown -R me: {PROJECT}", user="root")).require("chown the files")


async def _warm_up(cloud: SimCloud) -> None:
    """Read from disk what every launcher needs, so that the first one is not slower."""
    async with new_hosts(cloud, 0) as hosts:
        head, laptop = hosts.head, hosts.laptop
        (await head.run(RAY.head_start, user="ubuntu", timeout=120)).require("start Ray")
        for command in ("ray --help", "shoal up --help"):
            (await laptop.run(command)).require(command)


class NodeCount:
    """When how many nodes had joined, according to the head's GCS."""

    def __init__(self, lines: asyncio.StreamReader) -> None:
        self._lines = lines
        self.joined: dict[int, float] = {}
        """When each number of nodes was first reached; 0 is when the GCS started to listen."""

    async def reaches(self, count: int) -> float:
        """Wait for this many nodes, and return when they had joined."""
        while max(self.joined, default=0) < count:
            line = await self._lines.readline()
            if not line:
                raise RuntimeError("the node counter exited")
            joined_at, _, nodes = line.decode().partition(" ")
            self.joined.setdefault(int(nodes), float(joined_at))
        return self.joined[max(self.joined)]


@contextlib.asynccontextmanager
async def node_count(
    head: Host, env: Mapping[str, str], program: Program = RAY
) -> AsyncIterator[NodeCount]:
    """Count the nodes of a cluster as they join, from before the cluster exists."""
    command = [sys.executable, str(HERE / "count_nodes.py"), head.address, "6379", program.kind]
    running = await head.popen(command, env=env)
    try:
        first = await running.stdout.readline()
        if first.strip() != b"watching":
            raise RuntimeError((await running.stderr.read()).decode())
        yield NodeCount(running.stdout)
    finally:
        running.kill()
        await running.wait()
