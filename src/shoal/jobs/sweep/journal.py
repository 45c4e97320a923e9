"""The results of a sweep in a directory: a journal of JSON lines that only grows, and a directory
for each run that has ended. The head has one, the laptop has another that follows it.

A run's directory is complete before its line is written, so a process that is killed at any time
leaves at most a run that is repeated.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shoal.jobs.sweep.sweep_spec import run_name

JOURNAL_FILE = "results.jsonl"
RUNS = "runs"
OUTPUT_FILE = "output.log"
ARCHIVE_FILE = "files.zip"

Result = dict[str, Any]


class Journal:
    """Appends results. One process writes at a time."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / RUNS).mkdir(parents=True, exist_ok=True)
        self._path = directory / JOURNAL_FILE
        self._end_last_line()

    def _end_last_line(self) -> None:
        """A line that was cut off when its writer was killed must not swallow the next one."""
        with self._path.open("ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.write(b"\n")

    def write_run(self, result: Result, output: bytes, archive: Iterator[bytes]) -> None:
        """Store what a run left, then its line."""
        name = run_name(result["run"])
        target, temporary = self.run_directory(result["run"]), self.directory / RUNS / f".{name}"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        (temporary / OUTPUT_FILE).write_bytes(output)
        first = next(archive, b"")
        if first:
            with (temporary / ARCHIVE_FILE).open("wb") as file:
                file.write(first)
                for chunk in archive:
                    file.write(chunk)
        if target.exists():
            shutil.rmtree(target)
        temporary.rename(target)
        self.append(result)

    def append(self, entry: Result) -> None:
        with self._path.open("ab") as file:
            file.write(json.dumps(entry).encode() + b"\n")

    def run_directory(self, number: int) -> Path:
        return self.directory / RUNS / run_name(number)


def read_results(directory: Path) -> dict[int, Result]:
    """The last result of each run. Damaged lines are skipped: their runs are repeated."""
    results: dict[int, Result] = {}
    for entry in read_lines(directory):
        if isinstance(entry.get("run"), int) and "status" in entry:
            results[entry["run"]] = entry
    return results


def read_lines(directory: Path) -> Iterator[Result]:
    try:
        file = (directory / JOURNAL_FILE).open("rb")
    except FileNotFoundError:
        return
    with file:
        for line in file:
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict):
                yield entry
