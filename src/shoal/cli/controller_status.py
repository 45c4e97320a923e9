"""The controller's part of `shoal status`: pending demand, and recent decisions with reasons."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from shoal.cli.formatting import columns, duration, number, terminal_width

if TYPE_CHECKING:
    from shoal.controller.client import StatusReport
    from shoal.controller.state import Decision
    from shoal.controller.status_file import ControllerStatus, WaitingDemand

_RECENT = 5
_COLOURS = {
    "launch": "green",
    "failed": "red",
    "block": "red",
    "unmet": "red",
    "anomaly": "yellow",
    "interruption": "yellow",
}


def controller_lines(report: StatusReport | None, cluster: str) -> list[str]:
    """The lines that `shoal status` shows for the controller."""
    if report is None:
        return []
    if report.restarts_too_often:
        text = f"the controller restarted {report.restarts} times within the last minute"
        return [click.style(text, fg="red"), *(f"  {line}" for line in report.log)]
    if not report.alive:
        silence = f"no heartbeat from the controller for {duration(report.age_s)}"
        lines = [click.style(silence, fg="red") + f"; restart it: shoal up {cluster}"]
        return [*lines, *(f"  {line}" for line in report.log)]
    state = report.state
    lines = [_summary(state)]
    if state.error:
        lines.append(click.style(f"controller error: {state.error}", fg="red"))
    lines += pending_lines(state.waiting)
    recent = decision_lines(state.decisions[-_RECENT:])
    return [*lines, *(["", "recent decisions"] if recent else []), *recent]


def _summary(state: ControllerStatus) -> str:
    workers = sum(n["role"] == "worker" for n in state.nodes)
    cpus = state.usage.get("CPU")
    parts = [f"{workers} of at most {state.limits['max_workers']} workers"]
    if cpus:
        parts.append(f"{number(cpus[0])} of {number(cpus[1])} CPU in use")
    return ", ".join(parts)


def pending_lines(rows: Iterable[WaitingDemand]) -> list[str]:
    """Demand that does not fit yet: for how long it has been pending, and what happens next."""
    lines = []
    for row in rows:
        since = duration(max(0.0, time.time() - row.since))
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
