"""What a prepared controller does until `up` deploys its config: it connects to Ray and to the
hosts, so that its first report follows at once. Changes nothing: `up` still does."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from shoal.controller import controller_config
from shoal.controller.node_manager import NodeManager
from shoal.controller.observer import GcsReader
from shoal.core.clock import Clock
from shoal.core.errors import ShoalError

_log = logging.getLogger(__name__)

_POLL_SECONDS = 0.05
_RETRY_SECONDS = 1.0


async def warm_up(directory: Path, node_manager: NodeManager, gcs: GcsReader, clock: Clock) -> None:
    """Return when there is a config, or when none is expected any more."""
    connecting = asyncio.ensure_future(_connect(node_manager, gcs, clock))
    try:
        while controller_config.stamp(directory) is None:
            if not controller_config.is_prepared(directory):
                _log.info("no config was deployed")
                break
            await clock.sleep(_POLL_SECONDS)
    finally:
        connecting.cancel()
        await asyncio.wait([connecting])


async def _connect(node_manager: NodeManager, gcs: GcsReader, clock: Clock) -> None:
    while True:
        try:
            await asyncio.to_thread(gcs.read)
            instances = await node_manager.list_instances()
        except ShoalError as error:
            _log.info("not connected yet: %s", error)
            await clock.sleep(_RETRY_SECONDS)
        else:
            _log.info("connected to Ray; %d instances", len(instances))
            return
