"""The launchers: a script written by hand, Ray's, and Shoal. Each is timed in the same way, from
its start until the head's GCS counts all nodes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from tests.simcloud.console import Running

from benchmarks.cluster_launch.bench_cluster import HERE, PROJECT, SETUP, BenchHosts, node_count
from benchmarks.cluster_launch.cpu_usage import CpuMeter, wait_until_quiet
from shoal.core.concurrency import run_all

# For earlier runs and other programs to settle.
_MAX_QUIET_WAIT_SECONDS = 60.0
_NO_TOKEN = {"RAY_AUTH_MODE": "disabled"}
_SHOAL_TOKEN = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN_PATH": "/home/ubuntu/.shoal/auth_token",
}


@dataclass(frozen=True)
class NodeEvent:
    """What a launcher printed about a node, and when."""

    seconds: float
    node: str
    text: str


@dataclass(frozen=True)
class Launch:
    """How a launch went. All times are seconds since its start."""

    seconds: float
    """Until all nodes had joined."""
    gcs: float
    """Until the head's GCS listened."""
    joined: tuple[float, ...]
    """Until each further node had joined."""
    returned: float
    """Until the launcher's command returned."""
    other_cores: float
    """How many cores other programs kept busy."""
    node_events: tuple[NodeEvent, ...] = ()

    @property
    def waited(self) -> float:
        """Until the command had returned and all nodes had joined. Ray's launcher returns when
        the head is up; by hand and with Shoal all nodes have joined when the command returns."""
        return max(self.returned, self.seconds)

    def __str__(self) -> str:
        joined = " ".join(f"{joined_at:.1f}" for joined_at in self.joined)
        return (
            f"all nodes after {self.seconds:5.1f} s (GCS at {self.gcs:.1f} s, nodes at {joined}; "
            f"the command returned after {self.returned:.1f} s; "
            f"other programs used {self.other_cores:.1f} cores)"
        )


Launcher = Callable[[BenchHosts, float], Coroutine[Any, Any, Launch]]


async def by_hand(hosts: BenchHosts, timeout: float) -> Launch:
    """A shell script that sends the files, runs the setup and starts Ray."""
    workers = [worker.address for worker in hosts.workers]
    starts = [hosts.program.head_start, hosts.program.worker_start]
    script = ["bash", str(HERE / "by_hand.sh"), PROJECT, *starts]
    command = [*script, hosts.head.address, *workers]
    setup = "\n".join(SETUP)
    return await _timed(hosts, command, setup, _NO_TOKEN, timeout)


async def ray_up(hosts: BenchHosts, timeout: float) -> Launch:
    """Ray's launcher. It returns when the head is up; its autoscaler starts the workers."""
    # A new name: Ray caches on the laptop what it did to a cluster of the same name.
    path = await hosts.write_file(f"ray-{hosts.head.name}")
    command = ["ray", "up", "-y", "--no-config-cache", path]
    return await _timed(hosts, command, "", _NO_TOKEN, timeout)


async def shoal_up(hosts: BenchHosts, timeout: float) -> Launch:
    """Shoal with the same file."""
    path = await hosts.write_file(f"shoal-{hosts.head.name}")
    command = ["shoal", "up", "--yes", "--json", path]
    return await _timed(hosts, command, "", _SHOAL_TOKEN, timeout)


async def _timed(
    hosts: BenchHosts, command: Sequence[str], stdin: str, env: dict[str, str], timeout: float
) -> Launch:
    async with node_count(hosts.head, env, hosts.program) as count:
        await wait_until_quiet(_MAX_QUIET_WAIT_SECONDS)
        meter = CpuMeter([hosts.laptop, *hosts.all_hosts])
        started = time.monotonic()
        running = await hosts.laptop.popen(list(command))
        running.stdin.write(stdin.encode())
        running.stdin.close()
        output = LauncherOutput(started)
        try:
            # A launcher that fails ends the wait for nodes; one that succeeds may return before
            # all of them have joined.
            all_joined, returned = await asyncio.wait_for(
                run_all(
                    [count.reaches(len(hosts.all_hosts)), output.read_until_exit(running)],
                ),
                timeout,
            )
        except asyncio.TimeoutError:
            raise RuntimeError(f"not done within {timeout} s\n{output}") from None
        finally:
            running.kill()
        other_cores = meter.other_cores()
    return Launch(
        seconds=all_joined - started,
        gcs=count.joined.pop(0) - started,
        joined=tuple(joined_at - started for joined_at in count.joined.values()),
        returned=returned,
        other_cores=other_cores,
        node_events=tuple(output.node_events),
    )


class LauncherOutput:
    """What a launcher prints, with the time of each node event."""

    def __init__(self, started: float) -> None:
        self._started = started
        self._lines: list[str] = []
        self.node_events: list[NodeEvent] = []

    async def read_until_exit(self, running: Running) -> float:
        """Read a launcher's output, and return after how many seconds it exited."""
        await run_all(self._read_lines(stream) for stream in (running.stdout, running.stderr))
        code = await running.wait()
        if code:
            raise RuntimeError(f"the launcher exited with {code}\n{self}")
        return time.monotonic() - self._started

    async def _read_lines(self, stream: asyncio.StreamReader) -> None:
        while line := await stream.readline():
            seconds = time.monotonic() - self._started
            text = line.decode(errors="replace").rstrip()
            self._lines.append(text)
            if text.startswith('{"event": "node"'):
                event = json.loads(text)
                detail = " ".join(filter(None, (event["phase"], event["detail"])))
                self.node_events.append(NodeEvent(seconds, event["node"], detail))

    def __str__(self) -> str:
        return "\n".join(self._lines)
