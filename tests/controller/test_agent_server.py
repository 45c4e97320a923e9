"""What machines ask the controller and tell it, and what they do when nobody answers: the real
server and the real shell loops, on loopback addresses."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from shoal.bootstrap import agents
from shoal.controller.agent_server import AgentServer
from shoal.controller.interruption import Interruption
from shoal.core.node_phase import Role
from shoal.ray_runtime.ray_stop import stop_command
from shoal.remote.runner import quote
from shoal.remote.scripts import read_script
from tests.polling import until

TOKEN = "a token of the test"


@dataclass
class Controller:
    """Who is asked. `promise` is the lease, None when the loop stands still."""

    promise: float | None = 900.0
    asked: list[Role] = field(default_factory=list)
    heard: list[tuple[str, Interruption]] = field(default_factory=list)
    known: set[str] = field(default_factory=lambda: {"i-1"})

    def lease(self, role: Role) -> float | None:
        self.asked.append(role)
        return self.promise if role == "worker" or self.promise is None else 0.0

    def on_interruption(self, node_id: str, notice: Interruption) -> bool:
        if node_id in self.known:
            self.heard.append((node_id, notice))
        return node_id in self.known


@dataclass
class Cluster:
    """A head's address with a controller behind it, and a home directory of a machine."""

    address: str
    home: Path
    controller: Controller
    reception: AgentServer

    async def run(self, script: str, **mark: str) -> str:
        """Run shell text on the machine."""
        env = {**os.environ, **mark}
        process = await asyncio.create_subprocess_exec(
            "sh", "-c", script, cwd=self.home, env=env, stdout=asyncio.subprocess.PIPE
        )
        printed, _ = await process.communicate()
        return printed.decode().strip()

    async def leave_running(self, command: str) -> None:
        """Run it as a part of the node, by which its end is known, as on a real machine."""
        await self.run(command, RAY_CLOUD_INSTANCE_ID=self.address)

    async def ask(self, request: str) -> str:
        where = f"{self.address} {agents.CONTROLLER_PORT}"
        words = f"printf %s {quote([request])} | controller_request {where} || echo no"
        return await self.run(f"{read_script(agents.SCRIPTS, agents.CONTROLLER_REQUEST)}\n{words}")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    # Of the loopback network, so that no other test is at the same port.
    address = f"127.{random.randrange(100, 250)}.{os.getpid() % 250}.{random.randrange(1, 250)}"
    (tmp_path / ".shoal").mkdir()
    (tmp_path / ".shoal" / "auth_token").write_text(TOKEN)
    controller = Controller()
    token = tmp_path / ".shoal" / "auth_token"
    reception = AgentServer(controller, address, agents.CONTROLLER_PORT, token)
    assert await reception.open()
    cluster = Cluster(address, tmp_path, controller, reception)
    yield cluster
    await reception.close()
    await cluster.run(stop_command(address))


async def test_a_promise_is_given_to_everyone_while_the_loop_turns(cluster: Cluster) -> None:
    assert await cluster.ask("GET /lease/worker HTTP/1.0\r\n\r\n") == "900"
    assert await cluster.ask("GET /lease/head HTTP/1.0\r\n\r\n") == "0"
    cluster.controller.promise = None
    assert await cluster.ask("GET /lease/worker HTTP/1.0\r\n\r\n") == "no"


async def test_nonsense_is_not_answered(cluster: Cluster) -> None:
    for request in (
        "GET / HTTP/1.0\r\n\r\n",
        "GET /lease/nobody HTTP/1.0\r\n\r\n",
        "\r\n\r\n",
        "GET " + 9000 * "x" + "\r\n\r\n",
    ):
        assert await cluster.ask(request) == "no"
    assert await cluster.ask("GET /lease/worker HTTP/1.0\r\n\r\n") == "900"


async def test_a_notice_without_the_clusters_token_is_refused(cluster: Cluster) -> None:
    for token in ("", "Authorization: Bearer guessed\r\n", "Authorization: Bearer \r\n"):
        told = f"POST /interruptions/i-1 HTTP/1.0\r\n{token}Content-Length: 9\r\n\r\nrebalance"
        assert await cluster.ask(told) == "no"
    (cluster.home / ".shoal" / "auth_token").unlink()
    token = "Authorization: Bearer \r\n"
    told = f"POST /interruptions/i-1 HTTP/1.0\r\n{token}Content-Length: 9\r\n\r\nrebalance"
    assert await cluster.ask(told) == "no", "without a token of one's own, nobody has the right one"
    assert cluster.controller.heard == []


async def test_the_agent_brings_every_notice_until_it_is_heard(cluster: Cluster) -> None:
    cluster.controller.known = set()
    watch = "echo rebalance; echo termination 1763260000; sleep 60"
    gcs = f"{cluster.address}:6379"
    for _ in range(2):  # the second leaves at once
        await cluster.leave_running(agents.interruption_agent_command(gcs, "i-1", watch))
    cluster.controller.known = {"i-1"}  # as when its controller has just been started
    await until(lambda: len(cluster.controller.heard) == 2, "both are heard")
    assert cluster.controller.heard == [
        ("i-1", Interruption("rebalance")),
        ("i-1", Interruption("termination", 1763260000.0)),
    ]


async def watch(cluster: Cluster, seconds: float, gcs_port: int = 1) -> Path:
    """Have the machine look after its lease. The file that it makes in its end."""
    lapsed = cluster.home / "lapsed"
    address = f"{cluster.address}:{gcs_port}"
    end = quote(["touch", str(lapsed)])
    watch = agents.lease_agent_command(
        address, "worker", seconds, end, controller_wait_seconds=7200
    )
    await cluster.leave_running(watch)
    return lapsed


def heard(cluster: Cluster) -> str:
    """What the machine has written down of its controller's last answer."""
    answer = cluster.home / ".shoal" / "lease"
    return answer.read_text() if answer.exists() else ""


async def test_a_machine_whose_controller_stands_still_ends_itself(cluster: Cluster) -> None:
    cluster.controller.promise = 3.0  # which counts, and not what it was started with
    lapsed = await watch(cluster, 5.0)
    await until(lambda: heard(cluster) == "3\n", "it has heard of its controller")
    asked = len(cluster.controller.asked)
    await until(lambda: len(cluster.controller.asked) > asked + 4, "it goes on asking")
    assert not lapsed.exists()
    cluster.controller.promise = None
    await until(lapsed.exists, "it has ended itself")


async def test_a_machine_whose_head_is_gone_ends_itself(cluster: Cluster) -> None:
    cluster.controller.promise = 2.0
    lapsed = await watch(cluster, 2.0)
    await until(lambda: heard(cluster), "it has heard of its controller")
    await cluster.reception.close()
    await until(lapsed.exists, "it has ended itself")


async def test_a_lease_that_is_turned_off_never_ends(cluster: Cluster) -> None:
    cluster.controller.promise = 0.0
    lapsed = await watch(cluster, 1.0)
    await until(lambda: heard(cluster) == "0\n", "it has heard of its controller")
    assert not lapsed.exists()


async def test_a_machine_that_never_had_a_controller_holds_on_to_the_heads_gcs(
    cluster: Cluster,
) -> None:
    await cluster.reception.close()
    with socket.create_server((cluster.address, 0)) as gcs:
        gcs.setblocking(False)
        lapsed = await watch(cluster, 2.0, gcs.getsockname()[1])
        knocks = 0

        def knocked() -> bool:
            nonlocal knocks
            try:
                gcs.accept()[0].close()
            except BlockingIOError:
                return False
            knocks += 1
            return knocks == 4  # more than the lease is long

        await until(knocked, "it looks for the GCS")
        assert not lapsed.exists()
    await until(lapsed.exists, "it has ended itself")
