"""Follows a controller's status and history from the laptop: one command on the head that prints
what is new every few seconds, over the connection that other commands share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from shoal.cluster.handle import ClusterHandle
from shoal.controller.paths import DIRECTORY, HISTORY, SAMPLES, USAGE_LEDGER
from shoal.controller.status_file import ControllerStatus
from shoal.controller.status_reader import (
    LOG_LINES,
    PRINT_STATUS,
    StatusReport,
    parse_report,
    unreadable_status,
    values_by_name,
)
from shoal.core.errors import ShoalError, UnreachableError
from shoal.providers.model import Instance
from shoal.remote.runner import Stream
from shoal.remote.scripts import script_command

# A head that prints nothing for this long does not answer any more.
_SILENCE_SECONDS = 15.0


@dataclass(frozen=True)
class StatusUpdate:
    """One round: the report, None where there is no controller, and the new lines of the history,
    the samples and the usage ledger. With an `error`, the report is the last one that could be
    read."""

    report: StatusReport | None
    history: tuple[str, ...] = ()
    samples: tuple[str, ...] = ()
    usage: tuple[str, ...] = ()
    error: ShoalError | None = None


async def follow_status(
    cluster: ClusterHandle,
    head: Instance,
    on_update: Callable[[StatusUpdate], None],
    *,
    every: float = 2.0,
) -> None:
    """Call `on_update` about every `every` seconds; the first update has the whole history. Returns
    when the controller's directory is gone. Raises `UnreachableError` when the head falls silent.
    """
    parser = _Parser(cluster.name, head, on_update)

    def take(chunk: bytes, stream: Stream) -> None:
        if stream == "stdout":
            parser.feed(chunk)

    command = script_command(
        "shoal.controller.scripts", "follow_status.sh", DIRECTORY, f"{every:g}", str(LOG_LINES),
        libraries=[PRINT_STATUS],
    )  # fmt: skip
    runner = cluster.node_runner(head)
    following = asyncio.ensure_future(runner.run(command, on_bytes=take, skip_profile=True))
    try:
        while not following.done():
            silence = time.monotonic() - parser.heard_at
            if silence > _SILENCE_SECONDS + every:
                raise UnreachableError(
                    "the head does not answer",
                    why=f"it has printed nothing for {silence:.0f} s",
                    node=head.name,
                )
            await asyncio.wait({following}, timeout=_SILENCE_SECONDS / 10)
        following.result()
    finally:
        following.cancel()
        await asyncio.wait({following})


class _Parser:
    """Collects the lines of a round, and reports it at its end."""

    def __init__(
        self, cluster: str, head: Instance, on_update: Callable[[StatusUpdate], None]
    ) -> None:
        self._cluster = cluster
        self._head = head
        self._on_update = on_update
        self._rest = b""
        self._lines: list[str] = []
        self._status: ControllerStatus | None = None
        self.heard_at = time.monotonic()

    def feed(self, chunk: bytes) -> None:
        self.heard_at = time.monotonic()
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            text = line.decode(errors="replace")
            if text == "end":
                self._finish(self._lines)
                self._lines = []
            else:
                self._lines.append(text)

    def _finish(self, lines: list[str]) -> None:
        values = values_by_name(lines)
        report, error = None, None
        try:
            report = parse_report(self._cluster, values, self._status)
        except (ValueError, KeyError) as problem:
            error = unreadable_status(problem, self._head)
            values.pop("state", None)
            if self._status is not None:
                report = parse_report(self._cluster, values, self._status)
        if report is not None and report.state.pid:
            self._status = report.state
        self._on_update(
            StatusUpdate(
                report,
                tuple(values.get(HISTORY, ())),
                tuple(values.get(SAMPLES, ())),
                tuple(values.get(USAGE_LEDGER, ())),
                error,
            )
        )
