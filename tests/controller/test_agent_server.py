"""The agent server and the agents of nodes: the real server and the real shell scripts, on
loopback addresses."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from shoal.bootstrap import agents
from shoal.controller.agent_server import AgentServer
from shoal.controller.interruption import Interruption
from shoal.core.node_phase import Role
from shoal.ray_runtime.ray_stop import stop_command
from shoal.remote.runner import quote
from shoal.remote.scripts import read_script
from tests.polling import until

pytestmark = pytest.mark.processes

TOKEN = "a token of the test"


@dataclass
class RecordingHandler:
    """A handler that records its calls. `lease_s` is the lease, None when the loop is stalled."""

    lease_s: float | None = 900.0
    lease_requests: list[Role] = field(default_factory=list)
    interruptions: list[tuple[str, Interruption]] = field(default_factory=list)
    known_nodes: set[str] = field(default_factory=lambda: {"i-1"})

    def lease(self, role: Role) -> float | None:
        self.lease_requests.append(role)
        return self.lease_s if role == "worker" or self.lease_s is None else 0.0

    def on_interruption(self, node_id: str, notice: Interruption) -> bool:
        if node_id in self.known_nodes:
            self.interruptions.append((node_id, notice))
        return node_id in self.known_nodes


class OneNode:
    """A Ray cluster of one node."""

    def live_nodes(self) -> list[dict[str, Any]]:
        return [{"instance_id": "i-1"}]


@dataclass
class Cluster:
    """A head's address with an agent server, and the home directory of a node."""

    address: str
    home: Path
    controller: RecordingHandler
    server: AgentServer

    async def run(self, script: str, **mark: str) -> str:
        """Run shell text on the node."""
        env = {**os.environ, **mark}
        process = await asyncio.create_subprocess_exec(
            "sh", "-c", script, cwd=self.home, env=env, stdout=asyncio.subprocess.PIPE
        )
        printed, _ = await process.communicate()
        return printed.decode().strip()

    async def start_daemon(self, command: str) -> None:
        """Start a daemon with the marker of the node, with which it is stopped."""
        await self.run(command, RAY_CLOUD_INSTANCE_ID=self.address)

    async def request(self, request: str) -> str:
        where = f"{self.address} {agents.CONTROLLER_PORT}"
        command = f"printf %s {quote([request])} | controller_request {where} || echo no"
        return await self.run(
            f"{read_script(agents.SCRIPTS, agents.CONTROLLER_REQUEST)}\n{command}"
        )


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    # A loopback address of its own, so that no other test uses the same port.
    address = f"127.{random.randrange(100, 250)}.{os.getpid() % 250}.{random.randrange(1, 250)}"
    (tmp_path / ".shoal").mkdir()
    (tmp_path / ".shoal" / "auth_token").write_text(TOKEN)
    controller = RecordingHandler()
    token = tmp_path / ".shoal" / "auth_token"
    server = AgentServer(controller, address, agents.CONTROLLER_PORT, token, OneNode())
    assert await server.open()
    cluster = Cluster(address, tmp_path, controller, server)
    yield cluster
    await server.close()
    await cluster.run(stop_command(address))


async def test_a_lease_is_granted_without_a_token_unless_the_loop_is_stalled(
    cluster: Cluster,
) -> None:
    assert await cluster.request("GET /lease/worker HTTP/1.0\r\n\r\n") == "900"
    assert await cluster.request("GET /lease/head HTTP/1.0\r\n\r\n") == "0"
    cluster.controller.lease_s = None
    assert await cluster.request("GET /lease/worker HTTP/1.0\r\n\r\n") == "no"


async def test_invalid_requests_are_rejected(cluster: Cluster) -> None:
    for request in (
        "GET / HTTP/1.0\r\n\r\n",
        "GET /lease/unknown HTTP/1.0\r\n\r\n",
        "\r\n\r\n",
        "GET " + 9000 * "x" + "\r\n\r\n",
    ):
        assert await cluster.request(request) == "no"
    assert await cluster.request("GET /lease/worker HTTP/1.0\r\n\r\n") == "900"


async def test_an_interruption_without_the_clusters_token_is_rejected(cluster: Cluster) -> None:
    for token in ("", "Authorization: Bearer guessed\r\n", "Authorization: Bearer \r\n"):
        post = f"POST /interruptions/i-1 HTTP/1.0\r\n{token}Content-Length: 9\r\n\r\nrebalance"
        assert await cluster.request(post) == "no"
    (cluster.home / ".shoal" / "auth_token").unlink()
    token = "Authorization: Bearer \r\n"
    post = f"POST /interruptions/i-1 HTTP/1.0\r\n{token}Content-Length: 9\r\n\r\nrebalance"
    assert await cluster.request(post) == "no", "without a token file, no token is valid"
    assert cluster.controller.interruptions == []


async def test_rays_nodes_are_listed_for_the_holder_of_the_token(cluster: Cluster) -> None:
    command = agents.request_nodes_command(f"{cluster.address}:6379")
    assert await cluster.run(command) == '{"nodes": [{"instance_id": "i-1"}]}'
    assert await cluster.request("GET /nodes HTTP/1.0\r\n\r\n") == "no"
    (cluster.home / ".shoal" / "auth_token").unlink()
    assert await cluster.run(f"{command} || echo no") == "no"


async def test_the_agent_repeats_every_notice_until_it_is_accepted(cluster: Cluster) -> None:
    cluster.controller.known_nodes = set()
    watch = "echo rebalance; echo termination 1763260000; sleep 60"
    gcs = f"{cluster.address}:6379"
    for _ in range(2):  # the second exits at once
        await cluster.start_daemon(agents.interruption_agent_command(gcs, "i-1", watch))
    cluster.controller.known_nodes = {"i-1"}  # as when the controller has just started
    await until(lambda: len(cluster.controller.interruptions) == 2, "both are accepted")
    assert cluster.controller.interruptions == [
        ("i-1", Interruption("rebalance")),
        ("i-1", Interruption("termination", 1763260000.0)),
    ]


async def watch(cluster: Cluster, seconds: float, gcs_port: int = 1) -> Path:
    """Start the lease agent. Returns the file that it makes when the lease expires."""
    expired = cluster.home / "expired"
    address = f"{cluster.address}:{gcs_port}"
    end = quote(["touch", str(expired)])
    watch = agents.lease_agent_command(
        address, "worker", seconds, end, controller_wait_seconds=7200
    )
    await cluster.start_daemon(watch)
    return expired


def last_answer(cluster: Cluster) -> str:
    """The controller's last answer, as the agent has saved it."""
    answer = cluster.home / ".shoal" / "lease"
    return answer.read_text() if answer.exists() else ""


async def test_a_node_whose_controller_is_stalled_shuts_down(cluster: Cluster) -> None:
    cluster.controller.lease_s = 3.0  # overrides what the agent was started with
    expired = await watch(cluster, 5.0)
    await until(lambda: last_answer(cluster) == "3\n", "the controller has answered")
    before = len(cluster.controller.lease_requests)
    await until(lambda: len(cluster.controller.lease_requests) > before + 4, "it renews its lease")
    assert not expired.exists()
    cluster.controller.lease_s = None
    await until(expired.exists, "the lease has expired")


async def test_a_node_whose_head_is_gone_shuts_down(cluster: Cluster) -> None:
    cluster.controller.lease_s = 2.0
    expired = await watch(cluster, 2.0)
    await until(lambda: last_answer(cluster), "the controller has answered")
    await cluster.server.close()
    await until(expired.exists, "the lease has expired")


async def test_a_lease_of_zero_seconds_never_expires(cluster: Cluster) -> None:
    cluster.controller.lease_s = 0.0
    expired = await watch(cluster, 1.0)
    await until(lambda: last_answer(cluster) == "0\n", "the controller has answered")
    assert not expired.exists()


async def test_without_a_controller_the_heads_gcs_renews_the_lease(
    cluster: Cluster,
) -> None:
    await cluster.server.close()
    with socket.create_server((cluster.address, 0)) as gcs:
        gcs.setblocking(False)
        expired = await watch(cluster, 2.0, gcs.getsockname()[1])
        connections = 0

        def has_connected_often() -> bool:
            nonlocal connections
            try:
                gcs.accept()[0].close()
            except BlockingIOError:
                return False
            connections += 1
            return connections == 4  # takes longer than the lease

        await until(has_connected_often, "it connects to the GCS")
        assert not expired.exists()
    await until(expired.exists, "the lease has expired")
