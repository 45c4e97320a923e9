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

from shoal.controller import boot, supervise
from shoal.controller.places import (
    CONTROLLER_LOCK,
    DEPUTY_LOCK,
    HANDOVER,
    SUPERVISOR_LOCK,
    TOKEN,
)

if TYPE_CHECKING:
    from shoal.controller.handover import Handover
    from shoal.controller.workshop import Workshop

_SUPERVISOR_CHECK_SECONDS = 1.0
# A supervisor that was just started takes so long to show.
_SUPERVISOR_START_SECONDS = 10.0


def main(verb: str, path: str, more: str = "", *secrets: str) -> None:
    directory = Path(path).absolute()
    directory.mkdir(parents=True, exist_ok=True)
    if verb == "start":
        if _has_other_secrets(directory, secrets):
            supervise.end(directory, SUPERVISOR_LOCK, CONTROLLER_LOCK)
        supervise.start(directory)
        if more == "at-boot-too":
            boot.enable(directory)
    elif verb == "stop":
        _stop(directory, float(more or 0))
    elif verb == "resume":
        from shoal.controller import deputy

        deputy.give_back(directory)
    elif verb == "supervise":
        supervise.supervise(directory, _load, functools.partial(_run, directory))
    elif verb == "deputize":
        from shoal.controller import deputy

        deputy.run(directory, float(more))
    else:
        sys.exit(f"there is no {verb}")


def _has_other_secrets(directory: Path, secrets: Sequence[str]) -> bool:
    """Whether this process was handed secrets, such as a registry's password, that the supervisor
    which runs does not have: one that was started without them after a reboot, or before they
    changed. They are only ever in an environment, so another one has to be started."""
    holder = supervise.holder(directory / SUPERVISOR_LOCK) if secrets else None
    if holder is None:
        return False
    try:
        environment = Path(f"/proc/{holder}/environ").read_bytes().split(b"\0")
    except OSError:
        return True  # nobody can say
    return any(f"{name}={os.environ[name]}".encode() not in environment for name in secrets)


def _stop(directory: Path, deputy_seconds: float) -> None:
    from shoal.controller import deputy

    boot.disable(directory)
    deputy.remember(directory)
    supervise.stop(directory)
    if deputy_seconds:
        deputy.start(directory, deputy_seconds)
    else:
        deputy.forget(directory)


def _load() -> None:
    """Everything that a controller needs, so that one is there at once."""
    import shoal.controller.loop
    import shoal.controller.metrics
    import shoal.controller.reception
    import shoal.controller.workshop
    import shoal.engine.gcs

    shoal.controller.metrics.load()
    shoal.engine.gcs.load()


def _run(directory: Path) -> None:
    from shoal.controller import handover as handovers

    # Nodes that are started from here must not take it for the cluster they belong to.
    os.environ.pop("RAY_ADDRESS", None)
    handover = handovers.read(directory)
    if handover is not None:
        asyncio.run(_control(directory, handover))
    if handovers.stamp(directory) is None:
        boot.disable(directory)  # a cluster that was given back leaves nothing behind


async def _control(directory: Path, handover: Handover) -> None:
    """Run the controller until it ends or is told to, and keep the supervisor alive meanwhile."""
    from shoal.bootstrap import hotline
    from shoal.clock import SystemClock
    from shoal.controller.loop import Controller, Tools
    from shoal.controller.metrics import Metrics
    from shoal.controller.reception import Reception
    from shoal.engine.gcs import Gcs

    # An embedded head shares its machine with others, and has a loopback address of its own.
    host = hotline.host_of(handover.gcs_address)
    clock = SystemClock()
    metrics = Metrics(host if handover.is_of_one_machine else "127.0.0.1", clock.now())
    make = functools.partial(_workshop, directory)
    tools = Tools(Gcs(handover.gcs_address), make, clock, metrics)
    controller = Controller(directory, handover, tools)
    reception = Reception(controller, host, hotline.PORT, directory.parent / TOKEN)
    supervise.end(directory, DEPUTY_LOCK)  # not before: it answers while all of this is loaded
    running = asyncio.ensure_future(controller.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    wait = _SUPERVISOR_CHECK_SECONDS
    while not running.done():
        if not handover.is_of_one_machine:
            await reception.open()
        await asyncio.wait([running], timeout=wait)
        started = not running.done() and supervise.see_to_supervisor(directory)
        wait = _SUPERVISOR_START_SECONDS if started else _SUPERVISOR_CHECK_SECONDS
    await reception.close()
    with contextlib.suppress(asyncio.CancelledError):
        await running


def _workshop(directory: Path, handover: Handover) -> Workshop:
    from shoal.bootstrap.orders import Orders
    from shoal.clock import SystemClock
    from shoal.controller.standpoint import from_the_head
    from shoal.controller.workshop import RealWorkshop
    from shoal.providers import provider_for
    from shoal.providers.base import Vouches

    clock = SystemClock()
    spec = from_the_head(handover.spec)
    home = Path(handover.home).expanduser()
    workshop: RealWorkshop
    provider = provider_for(spec, home, clock, lambda event: workshop.hear(event), on_head=True)
    if isinstance(provider, Vouches):
        provider.keyring.take(handover.host_keys)

    def take_leave() -> None:
        boot.disable(directory)
        (directory / HANDOVER).unlink(missing_ok=True)

    workshop = RealWorkshop(Orders(spec, provider, handover.files_digest), clock, take_leave)
    return workshop


if __name__ == "__main__":
    main(*sys.argv[1:])
