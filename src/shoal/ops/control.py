"""A cluster's controller, from outside: handing it the cluster, ending it, and reading what it
has to say. It runs on the head; everything here is one command there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass

from shoal.controller import report
from shoal.controller.handover import DIRECTORY, FILE, Handover
from shoal.controller.report import State
from shoal.errors import SetupError, ShoalError
from shoal.ops.context import Context
from shoal.ops.site import Site
from shoal.providers.base import Instance
from shoal.remote.base import Completed, capture, quote

_SECONDS = 60.0
_READ_SECONDS = 20.0
_FILE = f"{DIRECTORY}/{FILE}"
_REPLACE = f"mkdir -p {DIRECTORY} && cat > {_FILE}.new && mv {_FILE}.new {_FILE}"


def has_controller(site: Site) -> bool:
    """Whether this cluster is sized by a controller."""
    return site.spec.provider.type == "embedded"


async def hand_over(ctx: Context, site: Site, head: Instance) -> None:
    """Give the cluster, as its spec is now, to the controller, which is started if it does not
    run. One that runs takes it over without being restarted."""
    start = site.provider.ray_start(site.spec, head, head)
    handover = Handover(site.spec, site.orders.files_digest, str(ctx.home), start.gcs_address)
    done = await _on_head(
        site, head, f"{_REPLACE} && {_python(site, head)} start {DIRECTORY}", handover.to_json()
    )
    if not done.ok:
        raise SetupError(
            "the controller could not be started",
            why="the cluster runs, but does not size itself",
            fix="shoal up again",
            node=head.name,
            output=done.tail,
        )


async def dismiss(site: Site, head: Instance) -> None:
    """End the controller, so that nobody else changes the cluster. Without one, nothing is done;
    a head that cannot be reached has nobody to dismiss."""
    try:
        await _on_head(
            site,
            head,
            f"test ! -d {DIRECTORY} || {_python(site, head)} stop {DIRECTORY}",
        )
    except (ShoalError, asyncio.TimeoutError):
        return


@dataclass(frozen=True)
class Report:
    """What the controller said last. `age_s` is how long ago."""

    state: State
    age_s: float

    @property
    def alive(self) -> bool:
        return self.age_s < report.STALE_SECONDS


async def read_report(ctx: Context, site: Site, head: Instance) -> Report | None:
    """The controller's own account; None when there is none."""
    runner = site.provider.runner(site.spec, head)
    try:
        done, printed = await capture(
            runner, f"cat {DIRECTORY}/{report.FILE}", timeout=_READ_SECONDS
        )
        if not done.ok or not printed:
            return None
        state = report.parse(printed[-1])
    except (ShoalError, ValueError, asyncio.TimeoutError):
        return None
    return Report(state, max(0.0, ctx.clock.now() - state.at))


def _python(site: Site, head: Instance) -> str:
    start = site.provider.ray_start(site.spec, head, head)
    return f"{start.python} {quote(['-m', 'shoal.controller'])}"


async def _on_head(
    site: Site, head: Instance, command: str, given: Mapping[str, object] | None = None
) -> Completed:
    start = site.provider.ray_start(site.spec, head, head)
    return await site.provider.runner(site.spec, head).run(
        start.command(command),
        env=start.driver_env(),
        stdin=None if given is None else json.dumps(given).encode(),
        timeout=_SECONDS,
    )
