"""Machines whose controller was never started: because whoever was to start it died, or because
nobody was to."""

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


@dataclass
class Machine:
    """A machine, with a head's address that has a GCS and no controller."""

    home: Path
    head: str
    gcs: socket.socket
    knocks: int = 0

    @property
    def lapsed(self) -> bool:
        return (self.home / "lapsed").exists()

    async def run(self, command: str) -> None:
        env = {**os.environ, "RAY_CLOUD_INSTANCE_ID": self.head}
        process = await asyncio.create_subprocess_exec(
            "sh", "-c", command, cwd=self.home, env=env, stdout=asyncio.subprocess.DEVNULL
        )
        await process.wait()

    async def watch(self, seconds: float, *, hand: float, attended: bool = True) -> None:
        """Have the machine look after its lease."""
        address = f"{self.head}:{self.gcs.getsockname()[1]}"
        end = quote(["touch", str(self.home / "lapsed")])
        command = agents.lease_agent_command(
            address, "worker", seconds, end, controller_wait_seconds=hand, has_controller=attended
        )
        await self.run(command)

    async def looks(self, times: int) -> None:
        """Return when it has looked for the GCS so often from now on."""
        goal = self.knocks + times

        def enough() -> bool:
            with contextlib.suppress(BlockingIOError):
                self.gcs.accept()[0].close()
                self.knocks += 1
            return self.knocks >= goal

        await until(enough, f"it looks for the GCS {times} times", timeout=90)


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    # Of the loopback network, so that no other test is at the same port.
    head = f"127.{random.randrange(100, 250)}.{os.getpid() % 250}.{random.randrange(1, 250)}"
    with socket.create_server((head, 0)) as gcs:
        gcs.setblocking(False)
        machine = Machine(tmp_path, head, gcs)
        yield machine
        await machine.run(stop_command(head))


async def test_a_machine_whose_launcher_died_before_a_controller_ran_ends_itself(
    machine: Machine,
) -> None:
    """The head's Ray lives on, and nobody is left who would end it."""
    await machine.watch(1.0, hand=3.0)
    await machine.looks(1)
    assert not machine.lapsed, "someone may be about to start a controller"
    await until(lambda: machine.lapsed, "it has ended itself")


async def test_a_machine_whose_cluster_wants_no_controller_needs_none(machine: Machine) -> None:
    await machine.watch(1.0, hand=0.0, attended=False)
    await machine.looks(2)
    assert not machine.lapsed
    machine.gcs.close()
    await until(lambda: machine.lapsed, "without its head it has ended itself")


async def test_a_machine_that_runs_already_can_be_told_that_no_controller_will_come(
    machine: Machine,
) -> None:
    await machine.watch(2.0, hand=0.0)
    await machine.run(agents.no_controller_command())
    await machine.looks(3)
    assert not machine.lapsed


async def test_a_node_that_starts_anew_waits_for_a_controller_again(machine: Machine) -> None:
    """Its cluster had none, and was to have one when its launcher died."""
    await machine.run(agents.no_controller_command())
    await machine.watch(1.0, hand=0.0)
    await until(lambda: machine.lapsed, "it has ended itself")


@pytest.fixture
def wall(machine: Machine) -> Iterator[None]:
    """Nothing comes back from the controller's port, as behind a firewall: nobody takes those who
    have come, and the rest is not let in."""
    with (
        socket.create_server((machine.head, agents.CONTROLLER_PORT), backlog=0),
        contextlib.ExitStack() as s,
    ):
        for _ in range(4):
            one = s.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex((machine.head, agents.CONTROLLER_PORT))
        yield


@pytest.mark.long
async def test_a_machine_behind_a_firewall_holds_on_to_the_heads_gcs(
    machine: Machine, wall: None
) -> None:
    await machine.watch(1.0, hand=0.0)
    await machine.looks(3)
    assert not machine.lapsed


def test_an_up_may_take_two_hours_and_longer_where_commands_may() -> None:
    assert ShoalSettings().max_maintenance_s == 7200
    assert ShoalSettings(command_timeout_s=10_000).max_maintenance_s == 40_000
