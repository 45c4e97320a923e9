"""Reads what the controller has published on the head: its status, and the nodes in its journal."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from shoal.cluster.handle import ClusterHandle
from shoal.controller import status_file
from shoal.controller.lifecycle import Node
from shoal.controller.paths import (
    CONFIG,
    DIRECTORY,
    HEARTBEAT,
    JOURNAL,
    PAUSED_CONFIG,
    STATE,
)
from shoal.controller.state import NodeUpdated, from_line
from shoal.controller.status_file import ControllerStatus
from shoal.controller.supervisor import MAX_RESTARTS
from shoal.controller.supervisor import RESTART_WINDOW_SECONDS as _RESTART_WINDOW
from shoal.core.errors import SetupError, UnreachableError
from shoal.core.logs import suppress_and_log
from shoal.providers.model import Instance
from shoal.remote.runner import capture, quote
from shoal.remote.scripts import script_command

_log = logging.getLogger(__name__)

SCRIPTS = "shoal.controller.scripts"
PRINT_STATUS = "print_status.sh"

READ_SECONDS = 20.0
# How many lines of the controller's log are shown.
LOG_LINES = 8


@dataclass(frozen=True)
class StatusReport:
    """The status that the controller published last, and its age; how often the controller was
    restarted within the last minute, and the last lines of its log. A controller that has published
    nothing yet has an empty status, without a process id. Not `is_configured` if the controller was
    stopped on purpose, and should not run. `read_at` is when it was read, by the
    head's clock, as all times in it are: that of this machine may differ."""

    state: ControllerStatus
    age_s: float
    restarts: int = 0
    log: tuple[str, ...] = ()
    read_at: float = 0.0
    is_configured: bool = True

    @property
    def alive(self) -> bool:
        return self.state.pid != 0 and self.age_s < status_file.STALE_SECONDS

    @property
    def restarts_too_often(self) -> bool:
        return self.restarts > MAX_RESTARTS


async def read_status(
    cluster: ClusterHandle, head: Instance, *, wait_seconds: float = 0.0
) -> StatusReport | None:
    """The controller's status; None where there is no controller. With `wait_seconds`, waits so
    long for one that is newer than the config. Raises `UnreachableError` when the head cannot be
    reached, and `SetupError` when the status cannot be parsed."""
    runner = cluster.node_runner(head)
    polls = str(round(wait_seconds * 20))
    script = script_command(
        SCRIPTS, "read_status.sh", DIRECTORY, polls, str(LOG_LINES), libraries=[PRINT_STATUS]
    )
    seconds = READ_SECONDS + 2 * wait_seconds  # each poll takes a little longer than its pause
    try:
        _, output_lines = await capture(runner, script, timeout=seconds, skip_profile=True)
    except TimeoutError:
        why = f"no reply within {seconds:.0f} s"
        raise UnreachableError("the head does not answer", why=why, node=head.name) from None
    try:
        return parse_report(cluster.name, values_by_name(output_lines))
    except (ValueError, KeyError) as error:
        raise unreadable_status(error, head) from None


def unreadable_status(error: Exception, head: Instance) -> SetupError:
    """The error of a status that cannot be parsed."""
    return SetupError(
        "could not parse the controller's status",
        why=f"{DIRECTORY}/{STATE}: {error}",
        fix="restart the controller: shoal up CLUSTER",
        node=head.name,
    )


def values_by_name(output_lines: Sequence[str]) -> dict[str, list[str]]:
    """The lines that print_status.sh printed, by the name at their start."""
    values: dict[str, list[str]] = {}
    for line in output_lines:
        name, _, value = line.partition(" ")
        values.setdefault(name, []).append(value)
    return values


def parse_report(
    cluster: str, values: Mapping[str, Sequence[str]], status: ControllerStatus | None = None
) -> StatusReport | None:
    """The report from these values; None where there is no controller. `status` is the last one
    that was read, for values without one. Raises ValueError or KeyError for other values."""
    if "state" in values:
        status = status_file.parse(values["state"][0])
    if status is None and CONFIG not in values:
        return None
    (now,) = map(float, values["now"])
    if status is not None:
        (heartbeat_at,) = map(float, values.get(HEARTBEAT, ["0"]))
        report = _make_report(status, now, heartbeat_at)
    else:  # it was started then, and has published nothing
        (configured_at,) = map(float, values[CONFIG])
        report = StatusReport(ControllerStatus(0.0, 0, cluster), max(0.0, now - configured_at))
    restarts = [at for at in map(float, values.get("restart", ())) if now - at < _RESTART_WINDOW]
    log = tuple(values.get("log", ()))
    is_configured = CONFIG in values or PAUSED_CONFIG in values
    return replace(
        report, restarts=len(restarts), log=log, read_at=now, is_configured=is_configured
    )


def _make_report(status: ControllerStatus, now: float, heartbeat_at: float) -> StatusReport:
    # A controller whose disk is full cannot write its status, but may still update its heartbeat.
    published = StatusReport(status, max(0.0, now - status.at))
    by_heartbeat = StatusReport(status, max(0.0, now - heartbeat_at))
    if published.alive or not by_heartbeat.alive:
        return published
    age = f"{published.age_s:.0f} s"
    error = f"this status is {age} old: the controller cannot write it (is the head's disk full?)"
    return replace(by_heartbeat, state=replace(status, error=error))


async def read_nodes(cluster: ClusterHandle, head: Instance, name: str) -> list[Node]:
    """The nodes with this name or id in the controller's journal, each as last recorded, the
    oldest first."""
    journal = f"{DIRECTORY}/{JOURNAL}"
    kind = f'"kind": "{NodeUpdated.kind}"'
    script = f"{quote(['grep', '-F', '--', name, journal])} | {quote(['grep', '-F', kind])}"
    _, output_lines = await capture(
        cluster.node_runner(head), script, timeout=READ_SECONDS, skip_profile=True
    )
    nodes: dict[str, Node] = {}
    for line in output_lines:
        with suppress_and_log(_log, "parse a journal entry", ValueError):
            entry = from_line(line)
            if isinstance(entry, NodeUpdated) and name in (entry.node.name, entry.node.id):
                nodes[entry.node.id] = entry.node
    return list(nodes.values())
