"""Where a cluster's machines turn to its controller: an HTTP server on the address of the head's
GCS, reachable by whoever reaches that.

It answers one kind of question, for how long a lease is good, and takes one kind of message, that
a machine will be taken away. The answer reveals nothing and is for everyone; a message changes the
cluster, so it must come with the cluster's token. It runs in the controller's own event loop: a
controller that is stopped answers nothing, and one whose loop stands still says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from http import HTTPStatus
from pathlib import Path
from typing import Protocol

from shoal.controller.interruption import Interruption, parse
from shoal.core.node_phase import Role

# A thousand workers may ask in the same moment, when a controller has been away.
_BACKLOG = 1024
_SECONDS = 5.0
_MOST_BYTES = 4096
# What becomes of a question whose asker has gone, or never knew how to ask.
_NO_QUESTION = (
    asyncio.TimeoutError,
    asyncio.IncompleteReadError,
    asyncio.LimitOverrunError,
    OSError,
)
_ROLES: dict[str, Role] = {"head": "head", "worker": "worker"}


class Host(Protocol):
    """Who is asked."""

    def lease(self, role: Role) -> float | None:
        """For how many seconds a lease is good from now on, 0 for ever; None when nothing can be
        promised."""
        ...

    def hear(self, node_id: str, notice: Interruption) -> bool:
        """Take a notice. False while no such node is known."""
        ...


class AgentServer:
    """The server. It is opened again and again until it is: whoever had its place before may be
    just about to leave."""

    def __init__(self, host: Host, address: str, port: int, token: Path) -> None:
        self._host = host
        self._address = (address, port)
        self._token = token
        self._server: asyncio.Server | None = None

    async def open(self) -> bool:
        """Whether it is open now."""
        if self._server is None:
            with contextlib.suppress(OSError):
                self._server = await asyncio.start_server(
                    self._serve, *self._address, limit=_MOST_BYTES, backlog=_BACKLOG
                )
        return self._server is not None

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            status, text = await asyncio.wait_for(self._answer(reader), _SECONDS)
            head = f"HTTP/1.0 {status.value} {status.phrase}\r\nContent-Type: text/plain\r\n\r\n"
            writer.write(f"{head}{text}\n".encode())
            await asyncio.wait_for(writer.drain(), _SECONDS)
        except _NO_QUESTION:
            pass
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[HTTPStatus, str]:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        request, *lines = head.split("\r\n")
        fields = {k.strip().lower(): v.strip() for k, _, v in (x.partition(":") for x in lines)}
        verb, _, rest = request.partition(" ")
        _, what, who, *_ = [*rest.partition(" ")[0].split("/"), "", ""]
        if verb == "GET" and what == "lease" and who in _ROLES:
            return self._lease(_ROLES[who])
        if verb == "POST" and what == "notices" and who:
            if not self._is_ours(fields.get("authorization", "")):
                return HTTPStatus.FORBIDDEN, "the cluster's token is missing"
            length = fields.get("content-length", "")
            size = int(length) if length.isdigit() else 0
            body = await reader.readexactly(min(size, _MOST_BYTES))
            return self._notice(who, body.decode("utf-8", "replace"))
        return HTTPStatus.NOT_FOUND, "there is nothing here"

    def _lease(self, role: Role) -> tuple[HTTPStatus, str]:
        seconds = self._host.lease(role)
        if seconds is None:
            return HTTPStatus.SERVICE_UNAVAILABLE, "the controller stands still"
        return HTTPStatus.OK, str(round(seconds))

    def _notice(self, node_id: str, text: str) -> tuple[HTTPStatus, str]:
        try:
            notice = parse(text)
        except ValueError as error:
            return HTTPStatus.BAD_REQUEST, str(error)
        if not self._host.hear(node_id, notice):
            return HTTPStatus.NOT_FOUND, "no such node is known, yet"
        return HTTPStatus.OK, "heard"

    def _is_ours(self, authorization: str) -> bool:
        try:
            token = self._token.read_text().strip()
        except OSError:
            return False
        return bool(token) and hmac.compare_digest(
            authorization.encode(), f"Bearer {token}".encode()
        )
