"""Where a cluster file's text comes from: a path, an http(s) address, or text already read.

Reading is bounded in size and time, and every failure is one line. Nothing here knows YAML.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from shoal.spec.problems import Problem, SpecError

SIZE_LIMIT = 1_000_000
FETCH_SECONDS = 20.0


@dataclass(frozen=True)
class YamlText:
    """The text of a cluster file, and the name by which messages call it."""

    name: str
    text: str


def read(source: str | Path | YamlText) -> YamlText:
    """The text behind `source`; a string that starts with http:// or https:// is fetched."""
    if isinstance(source, YamlText):
        if len(source.text) > SIZE_LIMIT:
            raise _refused(source.name, _TOO_LARGE)
        return source
    name = str(source)
    if name.startswith(("http://", "https://")):
        return YamlText(name, _decoded(name, _fetched(name)))
    return YamlText(name, _decoded(name, _file_bytes(name)))


_TOO_LARGE = f"is larger than {SIZE_LIMIT // 1_000_000} MB, the limit for a cluster file"


def _refused(name: str, message: str) -> SpecError:
    return SpecError([Problem(name, message)])


def _file_bytes(name: str) -> bytes:
    try:
        path = Path(name).expanduser()
        if path.is_dir():
            raise _refused(name, "is a directory, not a cluster file")
        with path.open("rb") as file:
            return _bounded(name, file)
    except FileNotFoundError:
        raise _refused(name, "no such file") from None
    except (OSError, ValueError, RuntimeError) as error:
        # ValueError: a NUL in the name. RuntimeError: `~someone` who does not exist.
        raise _refused(name, f"cannot be read: {_reason(error)}") from None


def _fetched(name: str) -> bytes:
    import http.client
    import urllib.error
    import urllib.request

    deadline = time.monotonic() + FETCH_SECONDS
    try:
        with urllib.request.urlopen(name, timeout=FETCH_SECONDS) as reply:
            return _bounded(name, reply, lambda: time.monotonic() > deadline)
    except urllib.error.HTTPError as error:
        raise _refused(name, f"cannot be fetched: the server says {error.code}") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise _refused(name, f"cannot be fetched: {_reason(error)}") from None


def _bounded(name: str, file: BinaryIO, overdue: Callable[[], bool] = lambda: False) -> bytes:
    """All of the file, unless it is too large, or comes too slowly."""
    chunks: list[bytes] = []
    size = 0
    while chunk := file.read(65_536):
        size += len(chunk)
        if size > SIZE_LIMIT:
            raise _refused(name, _TOO_LARGE)
        if overdue():
            raise _refused(name, f"took longer than {FETCH_SECONDS:.0f} s to fetch")
        chunks.append(chunk)
    return b"".join(chunks)


def _decoded(name: str, raw: bytes) -> str:
    if b"\0" in raw[:4096] and not raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise _refused(name, "is a binary file, not a cluster file")
    try:
        if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
            return raw.decode("utf-16")
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise SpecError([Problem(name, "is not UTF-8 text", line=line)]) from None


def _reason(error: BaseException) -> str:
    inner = getattr(error, "reason", None)
    if isinstance(inner, BaseException):
        return _reason(inner)
    if isinstance(error, TimeoutError):
        return "timed out"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split()).lower()
