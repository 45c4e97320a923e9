"""How the controller's own explanation reads: what waits, what it decided lately, and why."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from shoal.cli.formatting import columns, duration, number

if TYPE_CHECKING:
    from shoal.controller.client import Report
    from shoal.controller.state import Decision
    from shoal.controller.status_file import State, Waiting

_RECENT = 5
_COLOURS = {"launch": "green", "failed": "red", "give up": "red", "cannot": "red", "odd": "yellow"}


def controller_lines(report: Report | None) -> list[str]:
    """The part of `shoal status` that is the controller's."""
    if report is None:
        return []
    if not report.alive:
        silence = f"the controller has said nothing for {duration(report.age_s)}"
        return [click.style(silence, fg="red") + "; shoal up starts it again"]
    state = report.state
    lines = [_summary(state)]
    if state.trouble:
        lines.append(click.style(f"trouble: {state.trouble}", fg="red"))
    lines += waiting_lines(state.waiting)
    recent = decision_lines(state.decisions[-_RECENT:])
    return [*lines, *(["", "lately"] if recent else []), *recent]


def _summary(state: State) -> str:
    workers = sum(n["role"] == "worker" for n in state.nodes)
    cpus = state.usage.get("CPU")
    parts = [f"{workers} of at most {state.limits['max_workers']} workers"]
    if cpus:
        parts.append(f"{number(cpus[0])} of {number(cpus[1])} CPU in use")
    return ", ".join(parts)


def waiting_lines(rows: Iterable[Waiting]) -> list[str]:
    """What waits for room, since when, and what is coming of it."""
    lines = []
    for row in rows:
        since = duration(max(0.0, time.time() - row.since))
        lines.append(f"waiting for {since}: {row.count} x {row.subject}: {row.outlook}")
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
    return columns(("at", "what", "of", "why"), rows) if rows else []
