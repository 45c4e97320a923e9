"""Shows a training job: the script's output on standard output, and a progress line and notes on
standard error."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import click

from shoal.cli.formatting import columns, duration
from shoal.core.events import Emit, Event
from shoal.core.money import per_hour
from shoal.train.job.job_events import TrainNote, TrainOutput, TrainProgress, TrainStarted

_LOG_EVERY_S = 10.0
_CLEAR = "\r\033[K"
_DEFAULT_WIDTH = 80


class TrainingView:
    """Passes other events on. On a terminal the last line shows the progress; in a log it is a
    line now and then, and when the number of workers changes."""

    def __init__(self, emit: Emit, *, is_terminal: bool | None = None) -> None:
        self._emit = emit
        self._is_terminal = sys.stderr.isatty() if is_terminal is None else is_terminal
        self._line = ""
        self._shown_at = 0.0
        self._workers = 0

    def event(self, event: Event) -> None:
        if isinstance(event, TrainOutput):
            self._clear()
            click.echo(event.line)
            self._draw()
        elif isinstance(event, TrainProgress):
            self._progress(event)
        elif isinstance(event, TrainNote):
            self._note(event.text if event.level == "info" else f"{event.level}: {event.text}")
        elif isinstance(event, TrainStarted):
            self._note(f"job {event.job}")
        else:
            self._clear()
            self._emit(event)

    def close(self) -> None:
        self._clear()
        self._line = ""

    def _note(self, text: str) -> None:
        self._clear()
        click.echo(text, err=True)
        self._draw()

    def _progress(self, event: TrainProgress) -> None:
        self._line = progress_line(event)
        if self._is_terminal:
            self._clear()
            self._draw()
            return
        now = time.monotonic()
        if event.workers != self._workers or now - self._shown_at >= _LOG_EVERY_S:
            self._workers, self._shown_at = event.workers, now
            click.echo(self._line, err=True)

    def _clear(self) -> None:
        if self._is_terminal and self._line:
            click.echo(_CLEAR, err=True, nl=False, color=True)

    def _draw(self) -> None:
        if self._is_terminal and self._line:
            # A line that wraps could not be cleared.
            click.echo(self._line[: _width_of_stderr() - 1], err=True, nl=False)


def _width_of_stderr() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or _DEFAULT_WIDTH
    except (OSError, ValueError):
        return _DEFAULT_WIDTH


def progress_line(event: TrainProgress) -> str:
    """For example: epoch 3/10  step 1200  4 workers  batch 256  812 samples/s  2m 5s left."""
    epoch = f"{event.epoch + 1}/{event.epochs}" if event.epochs else f"{event.epoch + 1}"
    parts = [
        f"epoch {epoch}",
        f"step {event.step}",
        f"{event.workers} worker{'s' if event.workers != 1 else ''}",
        f"batch {event.batch_size}",
        f"{event.throughput:.3g} samples/s" if event.throughput < 100
        else f"{event.throughput:.0f} samples/s",
    ]  # fmt: skip
    if event.seconds_left is not None:
        parts.append(f"{duration(event.seconds_left)} left")
    elif event.pass_seconds_left is not None:
        parts.append(f"{duration(event.pass_seconds_left)} left in this pass")
    return "  ".join(parts)


def reason_line(entry: dict[str, Any]) -> str:
    """An entry of the journal that explains a change; empty if it explains nothing."""
    at = time.strftime("%H:%M:%S", time.localtime(entry["time"]))
    text = entry.get("text") or ""
    if "members" in entry and "step" in entry:
        members = ", ".join(entry["members"])
        text = f"generation {entry['generation']} at step {entry['step']}: {members}"
        text += f" ({entry['reason']})"
    elif "path" in entry:
        text = f"checkpoint at step {entry['step']}: {entry['path']}"
    elif "target" in entry and "sizes" in entry:
        changes = entry["target"] != entry["current"]
        text = f"{entry['target']} workers instead of {entry['current']}: {text}" if changes else ""
    elif "why" in entry and "worker" in entry:
        text = f"{entry['worker']} ended: {entry['why']}"
    elif "why" in entry and "generation" in entry:
        text = f"generation {entry['generation']} cancelled: {entry['why']}"
    elif "status" in entry:
        text = f"ended with status {entry['status']}{': ' + text if text else ''}"
    return f"{at}  {text}" if text else ""


def size_table(entries: list[dict[str, Any]]) -> list[str]:
    """The last decision on the number of workers: the model behind it, and the alternatives."""
    decisions = [entry for entry in entries if "sizes" in entry]
    if not decisions:
        return []
    decision = decisions[-1]
    model, sizes = decision["model"], decision["sizes"]
    lines = ["", f"{decision['why']} (objective: {decision['objective']})"]
    lines.append(
        f"a step takes {model['alpha_c'] * 1000:.3g} ms + {model['beta_c'] * 1000:.3g} ms per "
        f"sample of a worker; reducing gradients {model['alpha_r'] * 1000:.3g} ms within a node, "
        f"{model['alpha_n'] * 1000:.3g} ms across nodes"
    )
    prices = decision.get("prices") or {}
    has_prices = prices.get("per_worker", 0) > 0
    header = ["WORKERS", "NODES", "BATCH", "SAMPLES/S", "GOODPUT", "RELATIVE"]
    header += ["PRICE"] if has_prices else []
    current = next((s for s in sizes if s["workers"] == decision["current"]), None)
    rows = []
    for size in sizes:
        relative = size["goodput"] / current["goodput"] if current else 0.0
        row = [str(size["workers"]), str(size["nodes"]), str(size["batch_size"])]
        row += [f"{size['throughput']:.0f}", f"{size['goodput']:.0f}", f"{relative:.0%}"]
        if has_prices:
            row.append(per_hour(prices["others"] + size["workers"] * prices["per_worker"]))
        row.append("<- chosen" if size["workers"] == decision["target"] else "")
        rows.append(row)
    return [*lines, *columns([*header, ""], rows)]
