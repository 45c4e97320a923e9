"""Renews leases in place of a controller that was paused on purpose, because `shoal up` works on
the cluster or the user wants no controller: no node may shut down because of that.

It grants the leases that the controller would grant and does nothing else; interruption notices
wait for the controller.
"""

from __future__ import annotations

import asyncio
import logging
import math
from pathlib import Path

from shoal.controller import controller_config, crontab, supervisor
from shoal.controller.agent_server import make_agent_server
from shoal.controller.controller_config import ControllerConfig
from shoal.controller.interruption import Interruption
from shoal.controller.paths import CONFIG, PAUSED_CONFIG, PREPARED_CONFIG, STANDBY_LOCK
from shoal.core.file_lock import FileLock
from shoal.core.node_phase import Role

_log = logging.getLogger(__name__)

_OPEN_RETRY_SECONDS = 0.5


def pause_config(directory: Path) -> None:
    """Rename the config to the paused one, from which the standby and `resume_controller` start.
    Without a config, the controller exits."""
    if (directory / CONFIG).exists():
        (directory / CONFIG).replace(directory / PAUSED_CONFIG)


def forget_config(directory: Path) -> None:
    """Delete the paused config: the controller is stopped for good."""
    (directory / PAUSED_CONFIG).unlink(missing_ok=True)


def start(directory: Path, seconds: float) -> None:
    """Start a standby that runs for this long, if there was a controller and its nodes have
    leases."""
    config = controller_config.read(directory, PAUSED_CONFIG)
    if config is None or config.is_single_machine:
        return
    supervisor.spawn(directory, "standby", str(seconds))


def run(directory: Path, seconds: float) -> None:
    """Be the standby for this long. Then resume the controller: the command that paused it was
    killed, and the nodes must not shut down because of that."""
    config = controller_config.read(directory, PAUSED_CONFIG)
    with FileLock(directory / STANDBY_LOCK) as lock:
        if config is None or not lock.try_acquire():
            return
        lock.write_owner()
        _log.info("standby renews leases for %.0f s while the controller is paused", seconds)
        asyncio.run(_serve(directory, config, seconds))
    _log.info("nothing resumed the controller within %.0f s; resuming it", seconds)
    resume_controller(directory)


def resume_controller(directory: Path) -> None:
    """Start the paused controller again, with the config it had; do nothing if a new config was
    deployed meanwhile."""
    config = controller_config.read(directory, PAUSED_CONFIG)
    if config is None or (directory / CONFIG).exists():
        return
    (directory / PAUSED_CONFIG).replace(directory / CONFIG)
    (directory / PREPARED_CONFIG).unlink(missing_ok=True)
    supervisor.start(directory)
    if not config.is_single_machine:
        crontab.enable(directory)


async def _serve(directory: Path, config: ControllerConfig, seconds: float) -> None:
    server = make_agent_server(_LeaseHandler(config), config, directory)
    remaining = seconds
    while not await server.open() and remaining > 0:
        await asyncio.sleep(_OPEN_RETRY_SECONDS)
        remaining -= _OPEN_RETRY_SECONDS
    if math.isfinite(remaining):
        await asyncio.sleep(remaining)
    else:
        await asyncio.Event().wait()


class _LeaseHandler:
    """An `agent_server.Handler` that knows leases only."""

    def __init__(self, config: ControllerConfig) -> None:
        self._settings = config.spec.shoal

    def lease(self, role: Role) -> float | None:
        return self._settings.lease_for(role)

    def on_interruption(self, node_id: str, notice: Interruption) -> bool:
        return False
