"""Reads an HTTP reply piece by piece as it arrives, for replies without an end: `urllib` would
block a thread for as long."""

from __future__ import annotations

import asyncio
import contextlib
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Mapping
from typing import TypeVar

from shoal.core.errors import ShoalError

T = TypeVar("T")

_OPEN_SECONDS = 60.0
_CHUNK = 65536


async def http_stream(url: str, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
    """The body of the reply to a GET request. Raises `OSError` if the connection is lost, and
    `ShoalError` if the status is not 200."""
    parts = urllib.parse.urlsplit(url)
    is_secure = parts.scheme == "https"
    port = parts.port or (443 if is_secure else 80)
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    fields = {"Host": parts.netloc, "Accept": "*/*", "Connection": "close", **headers}
    request = "".join([f"GET {path} HTTP/1.1\r\n", *(f"{k}: {v}\r\n" for k, v in fields.items())])
    opening = asyncio.open_connection(parts.hostname, port, ssl=is_secure or None)
    reader, writer = await _within(_OPEN_SECONDS, opening)
    try:
        writer.write(f"{request}\r\n".encode("latin-1"))
        await writer.drain()
        head = await _within(_OPEN_SECONDS, reader.readuntil(b"\r\n\r\n"))
        status_line, *lines = head.decode("latin-1").split("\r\n")
        reply = dict(line.lower().split(": ", 1) for line in lines if ": " in line)
        is_chunked = reply.get("transfer-encoding") == "chunked"
        body = _chunked(reader) if is_chunked else _plain(reader, reply.get("content-length"))
        status = int(status_line.split()[1])
        if status != 200:
            text = b"".join([piece async for piece in body]).decode(errors="replace").strip()
            raise ShoalError(f"GET {parts.path} failed ({status})", why=text[-500:])
        async for piece in body:
            yield piece
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise ConnectionError("the connection was closed") from error
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _chunked(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        while size:
            piece = await reader.readexactly(min(size, _CHUNK))
            size -= len(piece)
            yield piece
        await reader.readexactly(2)


async def _plain(reader: asyncio.StreamReader, length: str | None) -> AsyncIterator[bytes]:
    remaining = None if length is None else int(length)
    while remaining is None or remaining > 0:
        piece = await reader.read(_CHUNK if remaining is None else min(remaining, _CHUNK))
        if not piece:
            if remaining is not None:
                raise ConnectionError("the connection was closed")
            return
        remaining = None if remaining is None else remaining - len(piece)
        yield piece


async def _within(seconds: float, awaitable: Awaitable[T]) -> T:
    try:
        return await asyncio.wait_for(awaitable, seconds)
    except asyncio.TimeoutError:
        raise TimeoutError(f"no answer within {seconds:g} s") from None
