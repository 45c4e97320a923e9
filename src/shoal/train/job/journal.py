"""The job's journal: one JSON object per line on disk, and the newest ones in memory for those who
follow the job."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from pathlib import Path
from typing import Any

from shoal.core.logs import suppress_and_log
from shoal.train.job.job_spec import JOURNAL_FILE, OUTPUT_LOG

_log = logging.getLogger(__name__)

_KEPT = 50_000

Entry = dict[str, Any]


class Journal:
    """Entries have growing numbers, also over restarts of the controller. Output of the script has
    numbers too, but its lines are in a file of their own. `run` tells the runs of a resumed job
    apart."""

    def __init__(self, directory: Path, run: float = 0.0) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / JOURNAL_FILE
        self._output_path = directory / OUTPUT_LOG
        self._keep_of_run(run)
        self.earlier = read_journal(self._path)
        self._entries: deque[Entry] = deque(self.earlier, maxlen=_KEPT)
        # Later than all numbers of a controller before this one: it made fewer in that time.
        self._first = self._next = max(len(self.earlier), time.time_ns() // 1000)
        self._added = asyncio.Event()

    def add(self, kind: str, text: str = "", level: str = "info", **values: object) -> None:
        entry = {"time": round(time.time(), 3), "kind": kind, "text": text, "level": level}
        entry.update(values)
        self._append(self._path, json.dumps(entry) + "\n")
        self._remember(entry)

    def add_output(self, lines: tuple[str, ...]) -> None:
        self._append(self._output_path, "".join(f"{line}\n" for line in lines))
        self._remember({"kind": "output", "lines": list(lines)})

    async def wait(self, after: int, seconds: float) -> tuple[int, list[Entry]]:
        """The entries from number `after`, as soon as there are any, and the next number. 0 means
        all; the number of a controller before this one means all since it was restarted."""
        if after >= self._next:
            self._added.clear()
            try:
                await asyncio.wait_for(self._added.wait(), seconds)
            except asyncio.TimeoutError:
                return self._next, []
        wanted = self._next - max(after, self._first) if after else len(self._entries)
        entries = list(self._entries)[max(0, len(self._entries) - wanted) :]
        return self._next, entries if wanted else []

    def _keep_of_run(self, run: float) -> None:
        """Begin a new journal if the one here is of an earlier run, which is now resumed."""
        first = next(iter(read_journal(self._path)), None)
        if first is not None and first.get("run", run) != run:
            for path in (self._path, self._output_path):
                with suppress_and_log(_log, f"rename {path}", FileNotFoundError):
                    path.rename(path.with_name(f"{path.stem}-{first['run']:.0f}{path.suffix}"))

    def _remember(self, entry: Entry) -> None:
        self._entries.append(entry)
        self._next += 1
        self._added.set()

    def _append(self, path: Path, text: str) -> None:
        # A full disk must not end the training.
        with suppress_and_log(_log, f"append to {path}", OSError), path.open("a") as file:
            file.write(text)


def last_checkpoint_host(directory: Path) -> str:
    """The address of the machine that wrote the newest checkpoint of a job, in its last run or an
    earlier one. The id of its node may have changed since."""
    name = Path(JOURNAL_FILE)
    paths = sorted(directory.glob(f"{name.stem}*{name.suffix}"), key=lambda p: p.stat().st_mtime)
    for path in reversed(paths):
        for entry in reversed(read_journal(path)):
            if entry["kind"] == "checkpoint" and entry.get("host"):
                return str(entry["host"])
    return ""


def read_journal(path: Path) -> list[Entry]:
    """The entries of a journal file; a half-written last line is left out."""
    entries = []
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return []
    for line in lines:
        try:
            entries.append(json.loads(line))
        except ValueError:
            continue
    return entries
