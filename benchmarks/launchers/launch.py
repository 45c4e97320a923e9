"""The three launchers: a script by hand, Ray's own, and Shoal. Each is timed in the same way,
from its first instant to the moment at which the head's GCS counts all nodes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from tests.simcloud.console import Running

from benchmarks.launchers.cluster import HERE, PROJECT, SETUP, Machines, census
from benchmarks.launchers.cpu_usage import Meter, quiet
from shoal.core.concurrency import run_all

# For what came before to die down, and for others to pause.
_PATIENCE_SECONDS = 60.0
_NO_TOKEN = {"RAY_AUTH_MODE": "disabled"}
_SHOALS_TOKEN = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN_PATH": "/home/ubuntu/.shoal/auth_token",
}


@dataclass(frozen=True)
class Moment:
    """Something that a launcher said of a node, and when."""

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
    """Until the launcher returned."""
    others: float
    """How many processors other programs kept busy meanwhile."""
    told: tuple[Moment, ...] = ()

    def __str__(self) -> str:
        joined = " ".join(f"{moment:.1f}" for moment in self.joined)
        return (
            f"all nodes after {self.seconds:5.1f} s (GCS at {self.gcs:.1f} s, nodes at {joined}; "
            f"the command returned after {self.returned:.1f} s; "
            f"others used {self.others:.1f} processors)"
        )


Launcher = Callable[[Machines, float], Coroutine[Any, Any, Launch]]


async def by_hand(machines: Machines, timeout: float, *, before: str = "") -> Launch:
    """A shell script that sends the files, runs the setup and starts Ray, and nothing else but
    `before` each start."""
    workers = [worker.address for worker in machines.workers]
    engine = machines.engine
    starts = [f"{before}{start}" for start in (engine.head_start, engine.worker_start)]
    script = ["bash", str(HERE / "by_hand.sh"), PROJECT, *starts]
    command = [*script, machines.head.address, *workers]
    setup = "\n".join(SETUP)
    return await _timed(machines, command, setup, _NO_TOKEN, timeout)


async def by_the_letter(machines: Machines, timeout: float) -> Launch:
    """The same script with the `ray stop` that stands in cluster files before `ray start`."""
    return await by_hand(machines, timeout, before="ray stop\n")


async def ray_up(machines: Machines, timeout: float) -> Launch:
    """Ray's own launcher. It returns when the head is up; its autoscaler does the rest."""
    # A name of its own: Ray remembers on the laptop what it did to a cluster of the same name.
    path = await machines.write_file(f"ray-{machines.head.name}")
    command = ["ray", "up", "-y", "--no-config-cache", path]
    return await _timed(machines, command, "", _NO_TOKEN, timeout)


async def shoal_up(machines: Machines, timeout: float) -> Launch:
    """The same file, as it is."""
    path = await machines.write_file(f"shoal-{machines.head.name}")
    command = ["shoal", "up", "--yes", "--json", path]
    return await _timed(machines, command, "", _SHOALS_TOKEN, timeout)


async def _timed(
    machines: Machines, command: Sequence[str], stdin: str, env: dict[str, str], timeout: float
) -> Launch:
    async with census(machines.head, env, machines.engine) as count:
        await quiet(_PATIENCE_SECONDS)
        meter = Meter([machines.laptop, *machines.all])
        began = time.monotonic()
        running = await machines.laptop.popen(list(command))
        running.stdin.write(stdin.encode())
        running.stdin.close()
        conversation = Conversation(began)
        try:
            # A launcher that fails ends the wait for nodes; one that is content need not have
            # seen them all.
            all_there, returned = await asyncio.wait_for(
                run_all(
                    [count.reaches(len(machines.all)), conversation.listen(running)],
                ),
                timeout,
            )
        except asyncio.TimeoutError:
            raise RuntimeError(f"not done within {timeout} s\n{conversation}") from None
        finally:
            running.kill()
        others = meter.cores_of_others()
    return Launch(
        seconds=all_there - began,
        gcs=count.joined.pop(0) - began,
        joined=tuple(moment - began for moment in count.joined.values()),
        returned=returned,
        others=others,
        told=tuple(conversation.told),
    )


class Conversation:
    """What a launcher says while it runs, and when it said so of which node."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._lines: list[str] = []
        self.told: list[Moment] = []

    async def listen(self, running: Running) -> float:
        """Hear a launcher out, and return after how many seconds it was done."""
        await run_all(self._hear(stream) for stream in (running.stdout, running.stderr))
        code = await running.wait()
        if code:
            raise RuntimeError(f"the launcher ended with {code}\n{self}")
        return time.monotonic() - self._began

    async def _hear(self, stream: asyncio.StreamReader) -> None:
        while line := await stream.readline():
            seconds = time.monotonic() - self._began
            text = line.decode(errors="replace").rstrip()
            self._lines.append(text)
            if text.startswith('{"event": "node"'):
                event = json.loads(text)
                words = " ".join(filter(None, (event["phase"], event["detail"])))
                self.told.append(Moment(seconds, event["node"], words))

    def __str__(self) -> str:
        return "\n".join(self._lines)
