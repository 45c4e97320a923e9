"""`python -m shoal.controller VERB DIRECTORY`, on the head: `start` (with `at-boot-too` behind it,
if wished, and the names of secrets in its environment), `stop` (with the seconds for which a deputy
is to stand in) and `resume` are what `shoal` runs there, `supervise` and `deputize` what those
start in turn."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.controller import crontab, supervisor
from shoal.controller.paths import CONTROLLER_LOCK, DEPUTY_LOCK, HANDOVER, SUPERVISOR_LOCK, TOKEN
from shoal.core.file_lock import lock_owner

if TYPE_CHECKING:
    from shoal.controller.controller_config import ControllerConfig
    from shoal.controller.node_manager import NodeManager

_SUPERVISOR_CHECK_SECONDS = 1.0
# A supervisor that was just started takes so long to show.
_SUPERVISOR_START_SECONDS = 10.0


def main(verb: str, path: str, more: str = "", *secrets: str) -> None:
    directory = Path(path).absolute()
    directory.mkdir(parents=True, exist_ok=True)
    if verb == "start":
        if _has_other_secrets(directory, secrets):
            supervisor.end(directory, SUPERVISOR_LOCK, CONTROLLER_LOCK)
        supervisor.start(directory)
        if more == "at-boot-too":
            crontab.enable(directory)
    elif verb == "stop":
        _stop(directory, float(more or 0))
    elif verb == "resume":
        from shoal.controller import standby

        standby.give_back(directory)
    elif verb == "supervise":
        supervisor.supervise(directory, _load, functools.partial(_run, directory))
    elif verb == "deputize":
        from shoal.controller import standby

        standby.run(directory, float(more))
    else:
        sys.exit(f"there is no {verb}")


def _has_other_secrets(directory: Path, secrets: Sequence[str]) -> bool:
    """Whether this process was handed secrets, such as a registry's password, that the supervisor
    which runs does not have: one that was started without them after a reboot, or before they
    changed. They are only ever in an environment, so another one has to be started."""
    holder = lock_owner(directory / SUPERVISOR_LOCK) if secrets else None
    if holder is None:
        return False
    try:
        environment = Path(f"/proc/{holder}/environ").read_bytes().split(b"\0")
    except OSError:
        return True  # nobody can say
    return any(f"{name}={os.environ[name]}".encode() not in environment for name in secrets)


def _stop(directory: Path, deputy_seconds: float) -> None:
    from shoal.controller import standby

    crontab.disable(directory)
    standby.remember(directory)
    supervisor.stop(directory)
    if deputy_seconds:
        standby.start(directory, deputy_seconds)
    else:
        standby.forget(directory)


def _load() -> None:
    """Everything that a controller needs, so that one is there at once."""
    import shoal.controller.agent_server
    import shoal.controller.loop
    import shoal.controller.metrics
    import shoal.controller.node_manager
    import shoal.ray_runtime.gcs_client

    shoal.controller.metrics.load()
    shoal.ray_runtime.gcs_client.load()


def _run(directory: Path) -> None:
    from shoal.controller import controller_config as handovers

    # Nodes that are started from here must not take it for the cluster they belong to.
    os.environ.pop("RAY_ADDRESS", None)
    handover = handovers.read(directory)
    if handover is not None:
        asyncio.run(_control(directory, handover))
    if handovers.stamp(directory) is None:
        crontab.disable(directory)  # a cluster that was given back leaves nothing behind


async def _control(directory: Path, handover: ControllerConfig) -> None:
    """Run the controller until it ends or is told to, and keep the supervisor alive meanwhile."""
    from shoal.bootstrap import agents
    from shoal.controller.agent_server import AgentServer
    from shoal.controller.loop import Controller, Tools
    from shoal.controller.metrics import Metrics
    from shoal.core.clock import SystemClock
    from shoal.ray_runtime.gcs_client import Gcs

    # An embedded head shares its machine with others, and has a loopback address of its own.
    host = agents.controller_host(handover.gcs_address)
    clock = SystemClock()
    metrics = Metrics(host if handover.is_of_one_machine else "127.0.0.1", clock.now())
    make = functools.partial(_workshop, directory)
    tools = Tools(Gcs(handover.gcs_address), make, clock, metrics)
    controller = Controller(directory, handover, tools)
    reception = AgentServer(controller, host, agents.CONTROLLER_PORT, directory.parent / TOKEN)
    supervisor.end(directory, DEPUTY_LOCK)  # not before: it answers while all of this is loaded
    running = asyncio.ensure_future(controller.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    wait = _SUPERVISOR_CHECK_SECONDS
    while not running.done():
        if not handover.is_of_one_machine:
            await reception.open()
        await asyncio.wait([running], timeout=wait)
        started = not running.done() and supervisor.see_to_supervisor(directory)
        wait = _SUPERVISOR_START_SECONDS if started else _SUPERVISOR_CHECK_SECONDS
    await reception.close()
    with contextlib.suppress(asyncio.CancelledError):
        await running


def _workshop(directory: Path, handover: ControllerConfig) -> NodeManager:
    from shoal.cluster.handle import ClusterHandle
    from shoal.controller.head_spec import from_the_head
    from shoal.controller.node_manager import ProviderNodeManager
    from shoal.core.clock import SystemClock
    from shoal.providers import provider_for

    clock = SystemClock()
    spec = handover.spec if handover.is_of_one_machine else from_the_head(handover.spec)
    home = Path(handover.home).expanduser()
    workshop: ProviderNodeManager
    provider = provider_for(spec, home, clock, lambda event: workshop.hear(event), on_head=True)
    if provider.capabilities.host_keys is not None:
        provider.capabilities.host_keys.add(handover.host_keys)

    def take_leave() -> None:
        crontab.disable(directory)
        (directory / HANDOVER).unlink(missing_ok=True)

    workshop = ProviderNodeManager(
        ClusterHandle(provider, spec, files_digest=handover.files_digest), clock, take_leave
    )
    return workshop


if __name__ == "__main__":
    main(*sys.argv[1:])
