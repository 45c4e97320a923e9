"""The cluster that every launcher brings up: its machines, its file, and the watch over it."""

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

HERE = Path(__file__).parent
PROJECT = "/home/me/project"

FILES = 500
BYTES = 20_000_000
SETUP = (
    "echo 'export GREETING=hello' >> ~/.bashrc",
    "mkdir -p ~/results",
    "hostname > ~/results/host",
)
# What is not given here is as Ray has it. The store is small because many nodes share one memory.
_RAY = "--disable-usage-stats --num-cpus=1 --object-store-memory=100000000"
# Ray gives up on a node that takes more than 30 s, as they do when the computer is busy.
_PATIENTLY = "RAY_raylet_start_wait_time_s=300"
HEAD_START = f"{_PATIENTLY} ray start --head --port=6379 {_RAY}"
WORKER_START = f"{_PATIENTLY} ray start --address=$RAY_HEAD_IP:6379 {_RAY}"


@dataclass(frozen=True)
class Engine:
    """What is started on the machines. `kind` is what the census calls it."""

    kind: str
    head_start: str
    worker_start: str


RAY = Engine("ray", HEAD_START, WORKER_START)

# Takes as long as Ray on an idle machine, and none of its processor: for more nodes than could be
# Ray's here. The head listens early, as Ray does, and each node says when it has joined.
_LISTEN = "import socket, time; s = socket.create_server(('', 6379), backlog=99); time.sleep(9999)"
STAND_IN = Engine(
    "stand-ins",
    'bash -c \'sleep 2; setsid python3 -c "$0" > /dev/null 2>&1 & sleep 4; '
    f"echo > /dev/udp/127.0.0.1/6380' {shlex.quote(_LISTEN)}",
    "bash -c 'sleep 6; echo > /dev/udp/$RAY_HEAD_IP/6380'",
)


@dataclass(frozen=True)
class Machines:
    """A head and workers that have never run anything, and the laptop that is to use them."""

    laptop: Host
    head: Host
    workers: tuple[Host, ...]
    engine: Engine = RAY

    @property
    def all(self) -> tuple[Host, ...]:
        return (self.head, *self.workers)

    def file(self, name: str) -> dict[str, Any]:
        """The cluster's file, in the words that Ray's launcher understands."""
        # The second autoscaler of Ray never launches the second machine of such a cluster.
        first_autoscaler = "RAY_enable_autoscaler_v2=0 "
        config = " --autoscaling-config=~/ray_bootstrap_config.yaml"
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
            "head_start_ray_commands": ["ray stop", first_autoscaler + HEAD_START + config],
            "worker_start_ray_commands": ["ray stop", WORKER_START],
            **self._without_ray(),
        }

    def _without_ray(self) -> dict[str, Any]:
        if self.engine is RAY:
            return {}
        return {
            "head_start_ray_commands": ["ray stop", self.engine.head_start],
            "worker_start_ray_commands": ["ray stop", self.engine.worker_start],
            "shoal": {"controller": False},
        }

    async def write_file(self, name: str) -> str:
        """Put the cluster's file on the laptop, and return its path. JSON is YAML."""
        path = f"{name}.yaml"
        text = json.dumps(self.file(name), indent=2)
        (await self.laptop.run(f"cat > {path}", stdin=text)).require("writing the cluster's file")
        return path


@contextlib.asynccontextmanager
async def bed() -> AsyncIterator[SimCloud]:
    """A simulated cloud with all that the launchers need on its laptop, and nothing of it cold."""
    reason = why_not()
    if reason:
        sys.exit(f"cannot be measured here: {reason}")
    async with SimCloud() as cloud:
        await _put_files_on(await cloud.laptop())
        await _warm_up(cloud)
        yield cloud


@contextlib.asynccontextmanager
async def new_machines(
    cloud: SimCloud, workers: int, engine: Engine = RAY
) -> AsyncIterator[Machines]:
    """Boot a head and so many workers, for the length of a `with` block."""
    laptop = await cloud.laptop()
    hosts = await asyncio.gather(*(cloud.boot() for _ in range(workers + 1)))
    try:
        yield Machines(laptop, hosts[0], tuple(hosts[1:]), engine)
    finally:
        await asyncio.gather(*(cloud.destroy(host) for host in hosts))


async def _put_files_on(laptop: Host) -> None:
    """The files to send. They are noise, so sending them cannot be helped by compression."""
    dice = random.Random(0)
    root = laptop.root() / PROJECT.lstrip("/")
    for number in range(FILES):
        path = root / f"part-{number // 50}" / f"{number}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(dice.randbytes(BYTES // FILES))
    (await laptop.run(f"chown -R me: {PROJECT}", user="root")).require("giving files away")


async def _warm_up(cloud: SimCloud) -> None:
    """Read from disk what every launcher will need, so that the first one does not pay for it."""
    async with new_machines(cloud, 0) as machines:
        head, laptop = machines.head, machines.laptop
        (await head.run(HEAD_START, user="ubuntu", timeout=120)).require("starting Ray")
        for command in ("ray --help", "shoal up --help"):
            (await laptop.run(command)).require(command)


class Census:
    """When how many nodes had joined, as the head's GCS says."""

    def __init__(self, lines: asyncio.StreamReader) -> None:
        self._lines = lines
        self.joined: dict[int, float] = {}
        """The moment at which there were so many nodes for the first time; none, when the GCS
        began to listen."""

    async def reaches(self, count: int) -> float:
        """Return the moment at which that many nodes had joined."""
        while max(self.joined, default=0) < count:
            line = await self._lines.readline()
            if not line:
                raise RuntimeError("the count of nodes broke off")
            moment, _, alive = line.decode().partition(" ")
            self.joined.setdefault(int(alive), float(moment))
        return self.joined[max(self.joined)]


@contextlib.asynccontextmanager
async def census(head: Host, env: Mapping[str, str], engine: Engine = RAY) -> AsyncIterator[Census]:
    """Watch a cluster's nodes join, from before there is a cluster."""
    program = [sys.executable, str(HERE / "census.py"), head.address, "6379", engine.kind]
    running = await head.popen(program, env=env)
    try:
        first = await running.stdout.readline()
        if first.strip() != b"watching":
            raise RuntimeError((await running.stderr.read()).decode())
        yield Census(running.stdout)
    finally:
        running.kill()
        await running.wait()
