"""A live table: each node with its phase, elapsed time, and last line of output. Other events are
printed above it as plain lines."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from shoal.cli.render import messages
from shoal.core.errors import ShoalError
from shoal.core.events import ClusterGone, ClusterReady, Event, NodeChanged, Output, Stage
from shoal.core.node_phase import Phase

_FINAL = {Phase.READY, Phase.GONE, Phase.STOPPED, Phase.FAILED}
_STYLES = {Phase.READY: "green", Phase.FAILED: "red", Phase.GONE: "dim", Phase.STOPPED: "dim"}
_SYMBOLS = {Phase.READY: "✓", Phase.FAILED: "✗", Phase.GONE: "·", Phase.STOPPED: "·"}


@dataclass
class _Row:
    node_type: str
    address: str
    phase: Phase
    detail: str
    began: float
    ended: float | None = None
    spinner: Spinner = field(default_factory=lambda: Spinner("dots"))


class LiveRenderer:
    """Draws to standard error, which must be a terminal."""

    def __init__(self, *, verbose: bool) -> None:
        self._verbose = verbose
        self._rows: dict[str, _Row] = {}
        self._stage: str = ""
        self._stage_spinner = Spinner("dots")
        self._console = Console(stderr=True, highlight=False)
        self._live = Live(
            console=self._console, get_renderable=self._draw, refresh_per_second=8, transient=False
        )

    def event(self, event: Event) -> None:
        if isinstance(event, Stage):
            self._stage = event.text
            self._show()
        elif isinstance(event, NodeChanged):
            self._stage = ""
            self._node(event)
            self._show()
        elif isinstance(event, Output):
            self._output(event)
        else:
            self._stage = ""
            if isinstance(event, (ClusterReady, ClusterGone)) or not self._rows:
                self._hide()
            self._print(messages.lines(event))

    def error(self, error: ShoalError) -> None:
        self._hide()
        self._print(messages.error_lines(error))

    def __enter__(self) -> LiveRenderer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stage = ""
        self._hide()

    def _node(self, event: NodeChanged) -> None:
        now = time.monotonic()
        row = self._rows.get(event.node)
        if row is None:
            row = self._rows[event.node] = _Row(
                event.node_type, event.address, event.phase, event.detail, now
            )
        row.phase, row.detail = event.phase, event.detail
        row.ended = now if event.phase in _FINAL else None

    def _output(self, event: Output) -> None:
        if self._verbose:
            self._print([f"{event.node} | {event.line}"])
        elif (row := self._rows.get(event.node)) is not None and event.line.strip():
            row.detail = event.line.strip()

    def _draw(self) -> Group:
        parts: list[Spinner | Table] = []
        if self._stage:
            self._stage_spinner.update(text=Text(self._stage, style="dim"))
            parts.append(self._stage_spinner)
        if self._rows:
            parts.append(self._table())
        return Group(*parts)

    def _table(self) -> Table:
        now = time.monotonic()
        table = Table.grid(padding=(0, 2))
        for column in ("", "node", "type", "phase"):
            table.add_column(column, no_wrap=True)
        table.add_column("seconds", no_wrap=True, justify="right")
        table.add_column("detail", no_wrap=True, overflow="ellipsis", style="dim")
        for name, row in self._rows.items():
            style = _STYLES.get(row.phase, "yellow")
            seconds = (row.ended or now) - row.began
            symbol = Text(_SYMBOLS[row.phase], style) if row.phase in _FINAL else row.spinner
            # Escape codes from a node must not reach this terminal.
            detail = "" if row.phase is Phase.READY else Text.from_ansi(row.detail).plain
            table.add_row(
                symbol, Text(name, "bold"), Text(row.node_type), Text(str(row.phase), style),
                f"{seconds:.1f}s", Text(detail or row.address),
            )  # fmt: skip
        return table

    def _print(self, lines: list[str]) -> None:
        for line in lines:
            self._console.print(Text.from_ansi(line))

    def _show(self) -> None:
        if not self._live.is_started:
            self._live.start()
        self._live.refresh()

    def _hide(self) -> None:
        if self._live.is_started:
            self._live.transient = not self._rows  # a stage alone is erased
            self._live.refresh()
            self._live.stop()
