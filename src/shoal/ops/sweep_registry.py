"""The directories of the sweeps that were started or resumed on this machine, so that the page
finds them. A convenience: every command also works from a directory alone."""

from __future__ import annotations

import logging
from pathlib import Path

from shoal.core.atomic_write import write_atomically
from shoal.core.logs import suppress_and_log
from shoal.jobs.sweep.sweep_spec import SPEC_FILE
from shoal.ops.context import Context

_log = logging.getLogger(__name__)

_MAX_KEPT = 200


def record(ctx: Context, directory: Path) -> None:
    """Remember a sweep's directory, as the newest."""
    path = directory.resolve()
    lines = [str(path), *(line for line in _lines(ctx) if line != str(path))]
    with suppress_and_log(_log, "record the sweep", OSError):
        _file(ctx).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(_file(ctx), "".join(f"{line}\n" for line in lines[:_MAX_KEPT]))


def known_directories(ctx: Context) -> list[Path]:
    """The directories that still have a sweep, the newest first."""
    return [path for path in map(Path, _lines(ctx)) if (path / SPEC_FILE).is_file()]


def _lines(ctx: Context) -> list[str]:
    try:
        return [line for line in _file(ctx).read_text().splitlines() if line]
    except OSError:
        return []


def _file(ctx: Context) -> Path:
    return ctx.state_directory / "sweeps.txt"
