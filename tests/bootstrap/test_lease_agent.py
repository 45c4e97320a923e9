"""The lease agent of a node whose cluster has no controller, yet or at all."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from shoal.bootstrap import agents
from shoal.ray_runtime.ray_stop import stop_command
from shoal.remote.runner import quote
from shoal.spec.cluster_spec import ShoalSettings
from tests.polling import until

pytestmark = pytest.mark.processes


@dataclass
class Node:
    """A node, and its head's address with a GCS and no controller. `gcs_connections` counts the
    agent's connections to the GCS."""

    home: Path
    head: str
    gcs: socket.socket
    gcs_connections: int = 0

    @property
    def has_expired(self) -> bool:
        return (self.home / "expired").exists()

    async def run(self, command: str) -> None:
        env = {**os.environ, "RAY_CLOUD_INSTANCE_ID": self.head}
        process = await asyncio.create_subprocess_exec(
            "sh", "-c", command, cwd=self.home, env=env, stdout=asyncio.subprocess.DEVNULL
        )
        await process.wait()

    async def start_agent(
        self, seconds: float, *, controller_wait: float, has_controller: bool = True
    ) -> None:
        address = f"{self.head}:{self.gcs.getsockname()[1]}"
        on_expired = quote(["touch", str(self.home / "expired")])
        command = agents.lease_agent_command(
            address,
            "worker",
            seconds,
            on_expired,
            controller_wait_seconds=controller_wait,
            has_controller=has_controller,
        )
        await self.run(command)

    async def wait_for_polls(self, times: int) -> None:
        """Return when the agent has connected to the GCS this many more times."""
        target = self.gcs_connections + times

        def is_reached() -> bool:
            with contextlib.suppress(BlockingIOError):
                self.gcs.accept()[0].close()
                self.gcs_connections += 1
            return self.gcs_connections >= target

        await until(is_reached, f"the agent connects to the GCS {times} times", timeout=90)

    async def wait_until_expired(self) -> None:
        await until(lambda: self.has_expired, "the lease expires")


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    # A random loopback address, so that no other test uses the controller's port there.
    head = f"127.{random.randrange(100, 250)}.{os.getpid() % 250}.{random.randrange(1, 250)}"
    with socket.create_server((head, 0)) as gcs:
        gcs.setblocking(False)
        node = Node(tmp_path, head, gcs)
        yield node
        await node.run(stop_command(head))


async def test_lease_expires_when_up_died_before_it_started_a_controller(node: Node) -> None:
    """Ray on the head runs on, so the GCS alone must not renew the lease without limit."""
    await node.start_agent(1.0, controller_wait=3.0)
    await node.wait_for_polls(1)
    assert not node.has_expired, "a controller may still be started"
    await node.wait_until_expired()


async def test_gcs_renews_the_lease_of_a_cluster_without_controller(node: Node) -> None:
    await node.start_agent(1.0, controller_wait=0.0, has_controller=False)
    await node.wait_for_polls(2)
    assert not node.has_expired
    node.gcs.close()
    await node.wait_until_expired()


async def test_running_agent_heeds_that_no_controller_will_be_started(node: Node) -> None:
    await node.start_agent(2.0, controller_wait=0.0)
    await node.run(agents.no_controller_command())
    await node.wait_for_polls(3)
    assert not node.has_expired


async def test_restarted_node_waits_for_a_controller_again(node: Node) -> None:
    """Its cluster had no controller before, and was to get one when `up` died."""
    await node.run(agents.no_controller_command())
    await node.start_agent(1.0, controller_wait=0.0)
    await node.wait_until_expired()


@pytest.fixture
def firewall(node: Node) -> Iterator[None]:
    """The controller's port neither accepts nor refuses connections, as behind a firewall: its
    backlog is full."""
    address = (node.head, agents.CONTROLLER_PORT)
    with socket.create_server(address, backlog=0), contextlib.ExitStack() as stack:
        for _ in range(4):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(address)
        yield


@pytest.mark.long
async def test_gcs_renews_the_lease_behind_a_firewall(node: Node, firewall: None) -> None:
    await node.start_agent(1.0, controller_wait=0.0)
    await node.wait_for_polls(3)
    assert not node.has_expired


def test_maintenance_may_take_two_hours_or_four_command_timeouts() -> None:
    assert ShoalSettings().max_maintenance_s == 7200
    assert ShoalSettings(command_timeout_s=10_000).max_maintenance_s == 40_000
