"""Reads the text of a cluster file from a path or an http(s) URL, with limits on size and time.

Every failure is a `SpecError` of one line. The text is not parsed here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from shoal.spec.problems import Problem, SpecError

SIZE_LIMIT = 1_000_000
FETCH_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class YamlText:
    """The text of a cluster file, and its name in messages."""

    name: str
    text: str


def read(source: str | Path | YamlText) -> YamlText:
    """The text of `source`; a string that starts with http:// or https:// is fetched."""
    if isinstance(source, YamlText):
        if len(source.text) > SIZE_LIMIT:
            raise _error(source.name, _TOO_LARGE)
        return source
    name = str(source)
    if name.startswith(("http://", "https://")):
        return YamlText(name, _decode(name, _fetch(name)))
    return YamlText(name, _decode(name, _read_file(name)))


_TOO_LARGE = f"is larger than {SIZE_LIMIT // 1_000_000} MB, the limit for a cluster file"


def _error(name: str, message: str) -> SpecError:
    return SpecError([Problem(name, message)])


def _read_file(name: str) -> bytes:
    try:
        path = Path(name).expanduser()
        if path.is_dir():
            raise _error(name, "is a directory, not a cluster file")
        with path.open("rb") as file:
            return _read_limited(name, file)
    except FileNotFoundError:
        raise _error(name, "no such file") from None
    except (OSError, ValueError, RuntimeError) as error:
        # ValueError: a NUL in the name. RuntimeError: `~user` of a user who does not exist.
        raise _error(name, f"could not be read: {_reason(error)}") from None


def _fetch(name: str) -> bytes:
    import http.client
    import urllib.error
    import urllib.request

    deadline = time.monotonic() + FETCH_TIMEOUT_S
    try:
        with urllib.request.urlopen(name, timeout=FETCH_TIMEOUT_S) as response:
            return _read_limited(name, response, lambda: time.monotonic() > deadline)
    except urllib.error.HTTPError as error:
        raise _error(name, f"could not be fetched: HTTP status {error.code}") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise _error(name, f"could not be fetched: {_reason(error)}") from None


def _read_limited(
    name: str, file: BinaryIO, is_overdue: Callable[[], bool] = lambda: False
) -> bytes:
    """The content of the file. Raises `SpecError` if it is too large or takes too long."""
    chunks: list[bytes] = []
    size = 0
    while chunk := file.read(65_536):
        size += len(chunk)
        if size > SIZE_LIMIT:
            raise _error(name, _TOO_LARGE)
        if is_overdue():
            raise _error(name, f"took longer than {FETCH_TIMEOUT_S:.0f} s to fetch")
        chunks.append(chunk)
    return b"".join(chunks)


def _decode(name: str, raw: bytes) -> str:
    if b"\0" in raw[:4096] and not raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise _error(name, "is a binary file, not a cluster file")
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
