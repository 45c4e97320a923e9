"""Replaces a file as a whole: a reader sees the old content or the new one, never a part of it."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from shoal.core.logs import suppress_and_log

_log = logging.getLogger(__name__)


def write_atomically(
    path: Path, content: str | bytes, *, mode: int | None = None, fsync: bool = False
) -> None:
    """Write a hidden temporary file beside `path` and rename it to `path`. `mode` sets the
    permissions, which otherwise follow the umask. With `fsync` the content survives a power
    failure. On an error the temporary file is deleted, because on a full disk it takes space that
    others need."""
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        descriptor = os.open(temporary, flags, 0o666 if mode is None else mode)
        with os.fdopen(descriptor, "wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)  # the umask does not apply to it
            file.write(data)
            if fsync:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress_and_log(_log, f"delete {temporary}", OSError):
            temporary.unlink(missing_ok=True)
        raise
