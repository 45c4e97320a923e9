"""What a controller on this machine leaves behind when it shuts its cluster down: when, and why.
Later commands tell the user. On a cloud, the note would go with the head."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

from shoal.core.atomic_write import write_atomically
from shoal.core.logs import suppress_and_log
from shoal.spec.durations import duration_text

_log = logging.getLogger(__name__)

_TODAY_SECONDS = 12 * 3600


def write(home: Path, cluster: str, now: float, idle_seconds: float) -> None:
    """Note that the cluster shuts down now, because it was unused for so long."""
    path = _file(home, cluster)
    with suppress_and_log(_log, f"write {path}", OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(path, json.dumps({"at": now, "idle_s": idle_seconds}))


def read(home: Path, cluster: str, now: float) -> str:
    """When and why the cluster was shut down; empty if it was not, as far as is known here."""
    try:
        note = json.loads(_file(home, cluster).read_text())
        at, idle_seconds = float(note["at"]), float(note["idle_s"])
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        _log.info("could not read why %s was shut down: %s", cluster, error)
        return ""
    form = "%H:%M:%S" if now - at < _TODAY_SECONDS else "%Y-%m-%d %H:%M"
    when = time.strftime(form, time.localtime(at))
    return f"autostop ended it at {when}, after {duration_text(idle_seconds)} without use"


def remove(home: Path, cluster: str) -> None:
    """Remove the note: the cluster is brought up again, or forgotten."""
    _file(home, cluster).unlink(missing_ok=True)


def _file(home: Path, cluster: str) -> Path:
    return home / "clusters" / f"{cluster}.shutdown"
