"""A live table: each node with its phase, elapsed time, and last line of output. Other events are
printed above it as plain lines."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from types import TracebackType

from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from shoal.cli.render import messages
from shoal.core.errors import ShoalError
from shoal.core.events import ClusterGone, ClusterReady, Event, NodeChanged, Output, Stage
from shoal.core.node_phase import Phase

_FINAL = {Phase.READY, Phase.GONE, Phase.STOPPED, Phase.FAILED}
_STYLES = {Phase.READY: "green", Phase.FAILED: "red", Phase.GONE: "dim", Phase.STOPPED: "dim"}
_SYMBOLS = {Phase.READY: "✓", Phase.FAILED: "✗", Phase.GONE: "·", Phase.STOPPED: "·"}

_MIN_NAME_WIDTH = 8
_GAP = "  "
# Time, level and source at the beginning of Ray's log lines.
_LOG_PREFIX = re.compile(r"^\d{4}-\d\d-\d\d [\d:,.]+\s+[A-Z]+\s+\S+ -- ")


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
        parts: list[Spinner | Text] = []
        if self._stage:
            self._stage_spinner.update(text=Text(self._stage, style="dim"))
            parts.append(self._stage_spinner)
        return Group(*parts, *self._lines())

    def _lines(self) -> list[Text]:
        """The table, one line per node. What a node prints takes the width that is left, so it
        cannot displace the node's name and phase; an overlong name is cut."""
        now = time.monotonic()
        rows = [
            (
                name,
                row.node_type,
                str(row.phase),
                f"{(row.ended or now) - row.began:.1f}s",
            )
            for name, row in self._rows.items()
        ]
        widths = [max((cell_len(row[n]) for row in rows), default=0) for n in range(4)]
        excess = 2 + sum(widths) + len(_GAP) * 5 - self._console.width
        widths[0] = max(_MIN_NAME_WIDTH, widths[0] - max(0, excess))
        lines = []
        for (name, node_type, phase, seconds), row in zip(rows, self._rows.values(), strict=True):
            style = _STYLES.get(row.phase, "yellow")
            line = Text(no_wrap=True, overflow="ellipsis")
            if row.phase in _FINAL:
                line.append(_SYMBOLS[row.phase], style)
            else:
                line.append(str(row.spinner.render(now)))
            line.append(_GAP + _fit(name, widths[0]), "bold")
            line.append(_GAP + _fit(node_type, widths[1]))
            line.append(_GAP + _fit(phase, widths[2]), style)
            line.append(_GAP + seconds.rjust(widths[3]))
            # Escape codes from a node must not reach this terminal.
            detail = "" if row.phase is Phase.READY else Text.from_ansi(row.detail).plain
            line.append(_GAP + (_LOG_PREFIX.sub("", detail) or row.address), "dim")
            lines.append(line)
        return lines

    def _print(self, lines: list[str]) -> None:
        for line in lines:
            # Soft wrap: a command that spans two rows of the terminal is still copied as one line.
            self._console.print(Text.from_ansi(line), soft_wrap=True)

    def _show(self) -> None:
        if not self._live.is_started:
            self._live.start()
        self._live.refresh()

    def _hide(self) -> None:
        if self._live.is_started:
            self._live.transient = not self._rows  # a stage alone is erased
            self._live.refresh()
            self._live.stop()


def _fit(text: str, width: int) -> str:
    """The text in exactly this many columns."""
    if cell_len(text) > width:
        text = f"{set_cell_size(text, width - 1)}…"
    return set_cell_size(text, width)
