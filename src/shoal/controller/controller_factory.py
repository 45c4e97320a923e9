"""Wires a controller together from its config, and runs it. Loaded only in processes that run a
controller: its imports take seconds on a busy machine."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from shoal.bootstrap import agents
from shoal.cluster import shutdown_note
from shoal.cluster.handle import ClusterHandle
from shoal.controller import (
    controller_config,
    crontab,
    status_file,
    status_publisher,
    supervisor,
)
from shoal.controller.agent_server import make_agent_server
from shoal.controller.controller_config import ControllerConfig, spec_on_head
from shoal.controller.loop import Controller, Dependencies
from shoal.controller.node_manager import NodeManager, ProviderNodeManager
from shoal.controller.paths import (
    CONFIG,
    PAUSED_CONFIG,
    PREPARED_CONFIG,
    STANDBY_LOCK,
    STATE,
    UNLISTED,
    VERSION,
)
from shoal.controller.status_publisher import Metrics
from shoal.controller.warm_up import warm_up
from shoal.core.clock import SystemClock
from shoal.core.concurrency import run_all
from shoal.core.errors import TransientError
from shoal.core.logs import suppress_and_log
from shoal.core.node_phase import Phase
from shoal.providers import provider_for
from shoal.ray_runtime import gcs_client

_log = logging.getLogger(__name__)

_SUPERVISOR_CHECK_SECONDS = 1.0
# A supervisor that was just started takes this long to acquire its lock.
_SUPERVISOR_START_SECONDS = 10.0


def load() -> None:
    """Import what the modules above import lazily, so that a forked controller starts at once."""
    status_publisher.load_metrics()
    gcs_client.preload()


def run(directory: Path) -> None:
    """Run the controller of this directory until it exits or is stopped."""
    # Otherwise nodes that are started here would join the cluster that this process belongs to.
    os.environ.pop("RAY_ADDRESS", None)
    asyncio.run(_warm_up_and_run(directory))
    if controller_config.stamp(directory) is None:
        crontab.disable(directory)


def terminate_workers(directory: Path) -> None:
    """Terminate all workers of a cluster whose controller was stopped for good. Repeatable: the
    paused config stays until it has succeeded."""
    config = controller_config.read(directory, PAUSED_CONFIG)
    if config is not None:
        node_manager = _make_node_manager(directory, config)
        asyncio.run(_terminate_listed_workers(node_manager, _ready_workers(directory)))


def _ready_workers(directory: Path) -> dict[str, str]:
    """The names of the workers that the controller last reported as ready, by id."""
    try:
        status = status_file.parse((directory / STATE).read_text())
    except (OSError, ValueError, KeyError):
        return {}
    nodes = [n for n in status.nodes if n["role"] == "worker" and n["phase"] == Phase.READY.value]
    return {str(node["id"]): str(node["name"]) for node in nodes}


async def _terminate_listed_workers(node_manager: NodeManager, ready: dict[str, str]) -> None:
    """Terminate all workers. Prints those that were ready if the provider knows none of them any
    more: it kept them in its memory, and they may run on."""
    workers = [i for i in await node_manager.list_instances() if i.role == "worker"]
    if not ready.keys() & {i.id for i in workers}:
        for name in ready.values():
            print(f"{UNLISTED} {name}")
    await run_all(node_manager.terminate(i, healthy=False) for i in workers)
    if left := [i.name for i in await node_manager.list_instances() if i.role == "worker"]:
        raise TransientError(f"still listed: {', '.join(left)}")


async def _warm_up_and_run(directory: Path) -> None:
    warmed_up = None
    prepared = controller_config.read(directory, PREPARED_CONFIG)
    if prepared is not None and controller_config.stamp(directory) is None:
        node_manager = _make_node_manager(directory, prepared)
        gcs = gcs_client.Gcs(prepared.gcs_address)
        await warm_up(directory, node_manager, gcs, SystemClock())
        warmed_up = _WarmedUp(prepared, node_manager, gcs)
    config = controller_config.read(directory)
    if config is not None:
        await _run(directory, config, warmed_up)


@dataclass(frozen=True)
class _WarmedUp:
    """What a prepared controller has connected, for this config."""

    config: ControllerConfig
    node_manager: NodeManager
    gcs: gcs_client.Gcs


async def _run(directory: Path, config: ControllerConfig, warmed_up: _WarmedUp | None) -> None:
    """Run the controller, and restart its supervisor if that dies."""
    stamp = controller_config.stamp(directory)
    _log.info(
        "controller of cluster %s started: package %s, config %s, process %d",
        *(config.spec.cluster_name, _package_version(directory), stamp, os.getpid()),
    )
    clock = SystemClock()
    # An embedded head shares its machine with others, and has its own loopback address.
    host = agents.controller_host(config.gcs_address)
    metrics = Metrics(host if config.is_single_machine else "127.0.0.1", clock.now())
    gcs = gcs_client.Gcs(config.gcs_address)
    if warmed_up is not None and warmed_up.config.gcs_address == config.gcs_address:
        gcs = warmed_up.gcs

    def make_node_manager(new_config: ControllerConfig) -> NodeManager:
        if warmed_up is not None and warmed_up.config == new_config:
            return warmed_up.node_manager
        return _make_node_manager(directory, new_config)

    dependencies = Dependencies(gcs, make_node_manager, clock, metrics)
    controller = Controller(directory, config, dependencies)
    server = make_agent_server(controller, config, directory, gcs)
    # Not earlier: the standby renews leases while all of this is loaded.
    supervisor.stop_holders(directory, STANDBY_LOCK)
    running = asyncio.ensure_future(controller.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    wait = _SUPERVISOR_CHECK_SECONDS
    while not running.done():
        if not config.is_single_machine:
            await server.open()
        await asyncio.wait([running], timeout=wait)
        was_started = not running.done() and supervisor.ensure_supervisor(directory)
        wait = _SUPERVISOR_START_SECONDS if was_started else _SUPERVISOR_CHECK_SECONDS
    await server.close()
    with suppress_and_log(_log, "finish the loop, it was stopped", asyncio.CancelledError):
        await running
    _log.info("controller exits")


def _package_version(directory: Path) -> str:
    """The uploaded package, whose name is a hash of its content."""
    try:
        return (directory / VERSION).read_text().strip()
    except OSError:
        return "unknown"


def _make_node_manager(directory: Path, config: ControllerConfig) -> NodeManager:
    clock = SystemClock()
    spec = config.spec if config.is_single_machine else spec_on_head(config.spec)
    home = Path(config.home).expanduser()
    node_manager: ProviderNodeManager
    provider = provider_for(
        spec, home, clock, lambda event: node_manager.on_provider_event(event), on_head=True
    )
    if provider.capabilities.host_keys is not None:
        provider.capabilities.host_keys.add(config.host_keys)

    def disable_autorestart() -> None:
        crontab.disable(directory)
        (directory / CONFIG).unlink(missing_ok=True)

    def note_shutdown() -> None:
        if config.is_single_machine:
            shutdown_note.write(home, spec.cluster_name, clock.now(), spec.shoal.autostop)

    cluster = ClusterHandle(provider, spec, files_digest=config.files_digest)
    node_manager = ProviderNodeManager(cluster, clock, disable_autorestart, note_shutdown)
    return node_manager
