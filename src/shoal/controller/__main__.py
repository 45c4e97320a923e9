"""`python -m shoal.controller VERB DIRECTORY`, on the head: `start` and `stop` are what `shoal`
runs there, `supervise` and `run` what those start in turn."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

from shoal.controller import handover as handovers
from shoal.controller import supervise
from shoal.controller.handover import Handover

_ORPHAN_CHECK_SECONDS = 0.5


def main(verb: str, path: str) -> None:
    directory = Path(path).absolute()
    directory.mkdir(parents=True, exist_ok=True)
    if verb == "start":
        supervise.start(directory)
    elif verb == "stop":
        supervise.stop(directory)
    elif verb == "supervise":
        supervise.supervise(directory)
    elif verb == "run":
        _run(directory)
    else:
        sys.exit(f"there is no {verb}")


def _run(directory: Path) -> None:
    # Nodes that are started from here must not take it for the cluster they belong to.
    os.environ.pop("RAY_ADDRESS", None)
    with supervise.hold_controller(directory) as held:
        handover = handovers.read(directory)
        if not held or handover is None:
            return
        orphaned = asyncio.run(_control(directory, handover))
    if orphaned:
        supervise.become_supervisor(directory)


async def _control(directory: Path, handover: Handover) -> bool:
    """Run the controller until it ends, is told to, or loses its supervisor; returns whether it
    was the last."""
    from shoal.bootstrap.orders import Orders
    from shoal.clock import SystemClock
    from shoal.controller.loop import Controller, Tools
    from shoal.controller.metrics import Metrics
    from shoal.controller.standpoint import from_the_head
    from shoal.controller.workshop import RealWorkshop, Workshop
    from shoal.engine.gcs import Gcs
    from shoal.providers import provider_for

    clock = SystemClock()

    def workshop(handover: Handover) -> Workshop:
        spec = from_the_head(handover.spec)
        provider = provider_for(spec, Path(handover.home).expanduser(), clock)
        return RealWorkshop(Orders(spec, provider, handover.files_digest), clock)

    # An embedded head shares its machine with others, and has a loopback address of its own.
    host = handover.gcs_address.rpartition(":")[0]
    metrics = Metrics(host if host.startswith("127.") else "127.0.0.1")
    tools = Tools(Gcs(handover.gcs_address), workshop, clock, metrics)
    controller = Controller(directory, handover, tools)
    running = asyncio.ensure_future(controller.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    parent = os.getppid()
    while not running.done() and os.getppid() == parent:
        await asyncio.wait([running], timeout=_ORPHAN_CHECK_SECONDS)
    orphaned = not running.done()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    return orphaned


if __name__ == "__main__":
    main(*sys.argv[1:])
