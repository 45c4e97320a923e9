"""The controller's part of `shoal status`: pending demand, and recent decisions with reasons."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

from shoal.cli.formatting import columns, duration, number, terminal_width

if TYPE_CHECKING:
    from shoal.controller.state import Decision
    from shoal.controller.status_file import ControllerStatus, WaitingDemand
    from shoal.ops.status import ClusterStatus

_RECENT = 5
_COLOURS = {
    "launch": "green",
    "failed": "red",
    "block": "red",
    "unmet": "red",
    "anomaly": "yellow",
    "interruption": "yellow",
}


def controller_lines(status: ClusterStatus) -> list[str]:
    """The lines that `shoal status` shows for the controller. Everything that can be counted comes
    from the nodes that are shown above: the controller's own count is a moment older."""
    report = status.controller
    if report is None:
        return []
    if report.restarts_too_often:
        text = f"the controller restarted {report.restarts} times within the last minute"
        return [click.style(text, fg="red"), *(f"  {line}" for line in report.log)]
    if not report.alive:
        silence = f"no heartbeat from the controller for {duration(report.age_s)}"
        lines = [click.style(silence, fg="red") + f"; restart it: shoal up {status.cluster}"]
        return [*lines, *(f"  {line}" for line in report.log)]
    state = report.state
    lines = [", ".join(_summary(status, state, report.read_at))]
    if state.error:
        lines.append(click.style(f"controller error: {state.error}", fg="red"))
    lines += pending_lines(state.waiting, report.read_at)
    recent = decision_lines(state.decisions[-_RECENT:])
    return [*lines, *(["", "recent decisions"] if recent else []), *recent]


def _summary(status: ClusterStatus, state: ControllerStatus, now: float) -> Iterator[str]:
    workers = sum(n.role == "worker" and not n.is_leaving for n in status.nodes)
    yield f"{workers} of at most {state.limits['max_workers']} workers"
    for name in ("CPU", "GPU"):
        total = math.fsum(n.total.get(name, 0.0) for n in status.nodes)
        available = math.fsum(n.available.get(name, 0.0) for n in status.nodes)
        if total:
            yield f"{number(total - available)} of {number(total)} {name} in use"
    for what in ("task", "actor"):
        if count := sum(getattr(n, f"{what}s") or 0 for n in status.nodes):
            yield f"{count} {what}{'s' if count > 1 else ''} running"
    if state.autostop_at is not None:
        yield f"autostop in {duration(max(0.0, state.autostop_at - now))} unless it is used"
    elif limit := state.limits.get("autostop_s"):
        yield f"autostop after {duration(limit)} without use"


def pending_lines(rows: Iterable[WaitingDemand], now: float) -> list[str]:
    """Demand that does not fit yet: for how long it has been pending, and what happens next. `now`
    is the time by the head's clock."""
    lines = []
    for row in rows:
        since = duration(max(0.0, now - row.since))
        lines.append(f"pending for {since}: {row.count} x {row.subject}: {row.outlook}")
        if row.fix:
            lines.append(f"  fix: {click.style(row.fix, fg='cyan')}")
    return lines


def decision_lines(decisions: Iterable[Decision]) -> list[str]:
    """Decisions as a table, oldest first."""
    rows = [
        (
            time.strftime("%H:%M:%S", time.localtime(d.at)),
            click.style(d.action, fg=_COLOURS.get(d.action)),
            d.subject,
            d.why,
        )
        for d in decisions
    ]
    return columns(("time", "action", "subject", "reason"), rows, terminal_width()) if rows else []
