"""Shows a sweep: a line for each run that has ended, with its last lines if it failed, and the
progress. On a terminal the progress is a live table."""

from __future__ import annotations

import sys
import time
from collections import deque

import click
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from shoal.cli.formatting import duration
from shoal.core.events import Emit, Event
from shoal.core.money import dollars
from shoal.jobs.sweep.sweep_events import (
    SweepEnded,
    SweepNote,
    SweepProgress,
    SweepRunEnded,
    SweepStarted,
)
from shoal.jobs.sweep.table import params_text, short

_LOG_EVERY_S = 10.0
_ROWS = 10
_METRICS = 4
_BAR = 40


class SweepView:
    """Passes other events on. In a log, every run is a line and the progress another now and then;
    on a terminal, the last runs are a table that is redrawn, and only failures are kept."""

    def __init__(self, emit: Emit, *, is_terminal: bool | None = None) -> None:
        self._emit = emit
        self._is_terminal = sys.stderr.isatty() if is_terminal is None else is_terminal
        self._shown_at = 0.0
        self._fixes: set[str] = set()
        self._progress: SweepProgress | None = None
        self._runs: deque[SweepRunEnded] = deque(maxlen=_ROWS)
        self._live: Live | None = None

    def event(self, event: Event) -> None:
        if isinstance(event, SweepStarted):
            self._print(started_lines(event))
        elif isinstance(event, SweepRunEnded):
            self._run(event)
        elif isinstance(event, SweepProgress):
            self._show(event)
        elif isinstance(event, SweepNote):
            lines = event.text.splitlines()
            self._print(lines if event.level == "info" else [f"{event.level}: {lines[0]}"])
        elif isinstance(event, SweepEnded):
            self.close()
            self._print(ended_lines(event))
        else:
            self._pause()
            self._emit(event)

    def close(self) -> None:
        self._pause()
        self._progress = None

    def _run(self, event: SweepRunEnded) -> None:
        self._runs.append(event)
        if event.status != "ok" or not self._is_terminal:
            self._print(run_lines(event))
        elif event.notes:
            self._print([f"run {event.run}: {note}" for note in event.notes])
        if event.fix and event.fix not in self._fixes:
            self._fixes.add(event.fix)
            self._print([click.style(f"fix: {event.fix}", fg="cyan")])

    def _show(self, event: SweepProgress) -> None:
        self._progress = event
        if self._is_terminal:
            self._draw()
            return
        now = time.monotonic()
        if now - self._shown_at >= _LOG_EVERY_S:
            self._shown_at = now
            self._print([progress_line(event)])

    def _draw(self) -> None:
        if self._live is None:
            console = Console(stderr=True, highlight=False)
            self._live = Live(console=console, transient=True, auto_refresh=False)
            self._live.start()
        self._live.update(self._picture(), refresh=True)

    def _pause(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _print(self, lines: list[str]) -> None:
        if self._live is not None:
            for line in lines:
                self._live.console.print(Text.from_ansi(line), soft_wrap=True)
            return
        for line in lines:
            click.echo(line, err=True)

    def _picture(self) -> Group:
        progress = self._progress
        assert progress is not None
        names = list(dict.fromkeys(n for run in self._runs for n in run.params))
        metrics = list(dict.fromkeys(n for run in self._runs for n in run.metrics))[:_METRICS]
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        for name in ("RUN", *names, *metrics, "STATUS", "TIME"):
            table.add_column(Text(name), no_wrap=True)
        for run in self._runs:
            table.add_row(
                str(run.run),
                *(Text(short(run.params.get(name))) for name in names),
                *(short(run.metrics.get(name)) for name in metrics),
                Text(run.status, "green" if run.status == "ok" else "red"),
                duration(run.seconds),
            )
        bar = ProgressBar(total=max(1, progress.total), completed=progress.done, width=_BAR)
        line = Text(progress_line(progress), no_wrap=True, overflow="ellipsis")
        return Group(*([table] if self._runs else []), bar, line)


def started_lines(event: SweepStarted) -> list[str]:
    lines = [f"sweep {event.sweep}: {_count(event.runs, 'run')}, results in {event.directory}"]
    if event.done:
        lines.append(f"{_count(event.done, 'run')} of it done already")
    if event.price_per_hour is not None:
        text = f"the cluster costs {dollars(event.price_per_hour)}/h now"
        if event.max_price_per_hour is not None:
            text += f", and at most {dollars(event.max_price_per_hour)}/h with all of its workers"
        if event.price_at_time_limit is None:
            text += "; the price of the sweep is estimated when the first runs have ended"
        lines.append(text)
    if event.price_at_time_limit is not None:
        price = dollars(event.price_at_time_limit)
        lines.append(f"if every run takes its time limit, the sweep costs about {price}")
    return lines


def run_lines(event: SweepRunEnded) -> list[str]:
    """For example: run 3  lr=0.1 seed=2  loss=0.25  4s."""
    metrics = " ".join(f"{n}={short(v)}" for n, v in list(event.metrics.items())[:_METRICS])
    parts = [f"run {event.run}", params_text(event.params)]
    if event.status == "ok":
        parts += [metrics, duration(event.seconds)]
    else:
        parts += [f"{event.status}: {event.why}", duration(event.seconds)]
    if event.attempts > 1:
        parts.append(f"{event.attempts} attempts")
    lines = ["  ".join(part for part in parts if part)]
    lines += [f"  | {line}" for line in event.tail]
    return [*lines, *(f"  {note}" for note in event.notes)]


def progress_line(event: SweepProgress) -> str:
    """For example: 12/40 done  1 failed  8 running  20 waiting  3 nodes  5m 3s left  $0.40 of
    about $1.20."""
    parts = [f"{event.done}/{event.total} done"]
    if event.failed:
        parts.append(f"{event.failed} failed")
    parts += [f"{event.running} running", f"{event.waiting} waiting", _count(event.nodes, "node")]
    if event.seconds_left is not None and event.done < event.total:
        parts.append(f"{duration(event.seconds_left)} left")
    if event.cost is not None:
        cost = f"{dollars(event.cost)} so far"
        if event.total_cost is not None:
            cost = f"{dollars(event.cost)} of about {dollars(event.total_cost)}"
        parts.append(cost)
    return "  ".join(parts)


def ended_lines(event: SweepEnded) -> list[str]:
    line = f"{_count(event.runs, 'run')}, {event.failed} failed, results in {event.directory}"
    if event.cost is not None:
        line += f"; the cluster cost {dollars(event.cost)} meanwhile"
    lines = [line, f"  {'show them':<20} shoal sweep show {event.directory}"]
    if event.failed:
        lines.append(
            f"  {'repeat the failed':<20} shoal sweep resume {event.directory} --retry-failed"
        )
    return lines


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
