"""Answers the cluster's machines while its controller is away on purpose, because a person has
their hand on the cluster or wants no controller there: nobody's lease is to run out over that.

It promises what the controller promised and does nothing else; notices wait for the controller.
"""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
from pathlib import Path

from shoal.bootstrap import agents
from shoal.controller import controller_config as handovers
from shoal.controller import crontab, supervisor
from shoal.controller.agent_server import AgentServer
from shoal.controller.controller_config import ControllerConfig
from shoal.controller.interruption import Interruption
from shoal.controller.paths import DEPUTY_LOCK, HANDOVER, LAST_HANDOVER, LOG, TOKEN
from shoal.core.file_lock import FileLock
from shoal.core.node_phase import Role

_PAUSE_SECONDS = 0.5


def remember(directory: Path) -> None:
    """Keep what the controller was told, for the deputy; to be called before it is taken away."""
    if (directory / HANDOVER).exists():
        (directory / HANDOVER).replace(directory / LAST_HANDOVER)


def forget(directory: Path) -> None:
    """Have no deputy ever again for what was."""
    (directory / LAST_HANDOVER).unlink(missing_ok=True)


def start(directory: Path, seconds: float) -> None:
    """Have a deputy for so long, if there was a controller to stand in for."""
    handover = handovers.read(directory, LAST_HANDOVER)
    if handover is None or handover.is_of_one_machine:
        return
    with (directory / LOG).open("a") as log:
        subprocess.Popen(
            [sys.executable, "-m", "shoal.controller", "deputize", str(directory), str(seconds)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def run(directory: Path, seconds: float) -> None:
    """Be the deputy for so long, and then give the cluster back: whoever dismissed its controller
    does not come back, and its machines are not to end over that."""
    handover = handovers.read(directory, LAST_HANDOVER)
    with FileLock(directory / DEPUTY_LOCK) as lock:
        if handover is None or not lock.try_acquire():
            return
        lock.write_owner()
        asyncio.run(_answer(directory, handover, seconds))
    give_back(directory)


def give_back(directory: Path) -> None:
    """Have the controller again that was dismissed, with what it had been told; nothing, where
    somebody has handed the cluster over since."""
    handover = handovers.read(directory, LAST_HANDOVER)
    if handover is None or (directory / HANDOVER).exists():
        return
    (directory / LAST_HANDOVER).replace(directory / HANDOVER)
    supervisor.start(directory)
    if not handover.is_of_one_machine:
        crontab.enable(directory)


async def _answer(directory: Path, handover: ControllerConfig, seconds: float) -> None:
    address = agents.controller_host(handover.gcs_address)
    reception = AgentServer(
        _Deputy(handover), address, agents.CONTROLLER_PORT, directory.parent / TOKEN
    )
    left = seconds
    while not await reception.open() and left > 0:
        await asyncio.sleep(_PAUSE_SECONDS)
        left -= _PAUSE_SECONDS
    if math.isfinite(left):
        await asyncio.sleep(left)
    else:
        await asyncio.Event().wait()


class _Deputy:
    """A `reception.Host`."""

    def __init__(self, handover: ControllerConfig) -> None:
        self._settings = handover.spec.shoal

    def lease(self, role: Role) -> float | None:
        return self._settings.lease_for(role)

    def hear(self, node_id: str, notice: Interruption) -> bool:
        return False
