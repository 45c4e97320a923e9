"""The HTTP server for the agents on the cluster's nodes, on the address of the head's GCS.

It answers `GET /lease/ROLE` with the number of seconds that a lease is valid, and takes
`POST /interruptions/NODE`. It answers `GET /nodes` with Ray's nodes, for `shoal status`: the
controller has a connection to the GCS, and another process would have to import Ray first. A lease
reveals nothing and needs no authentication; the other requests must carry the cluster's token. The
server runs in the controller's event loop: a stopped controller does not answer, and a stalled one
answers 503.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol

from shoal.bootstrap import agents
from shoal.controller.controller_config import ControllerConfig
from shoal.controller.interruption import Interruption, parse
from shoal.controller.paths import TOKEN
from shoal.core.errors import ShoalError
from shoal.core.logs import suppress_and_log
from shoal.core.node_phase import Role

_log = logging.getLogger(__name__)

# A thousand workers may connect at once when a controller has been away.
_BACKLOG = 1024
_TIMEOUT_SECONDS = 5.0
_MAX_BYTES = 4096
# A client that has gone, or does not speak HTTP.
_BAD_REQUEST_ERRORS = (
    asyncio.TimeoutError,
    asyncio.IncompleteReadError,
    asyncio.LimitOverrunError,
    OSError,
)
_FORBIDDEN = HTTPStatus.FORBIDDEN, "missing or wrong cluster token"
_ROLES: dict[str, Role] = {"head": "head", "worker": "worker"}


class Handler(Protocol):
    """Answers the requests: the controller, or a standby."""

    def lease(self, role: Role) -> float | None:
        """For how many seconds a lease is valid from now on, 0 if it never expires; None when
        nothing can be promised."""
        ...

    def on_interruption(self, node_id: str, notice: Interruption) -> bool:
        """Handle a notice. Returns False while the node is unknown."""
        ...


class RayNodes(Protocol):
    """Lists Ray's nodes. Blocks."""

    def live_nodes(self) -> list[dict[str, Any]]: ...


class AgentServer:
    """The server. `open` is repeated until it succeeds: the previous process on the port may be
    about to exit. A server without `ray` knows no nodes."""

    def __init__(
        self,
        handler: Handler,
        address: str,
        port: int,
        token: Path,
        ray: RayNodes | None = None,
    ) -> None:
        self._handler = handler
        self._ray = ray
        self._address = (address, port)
        self._token = token
        self._server: asyncio.Server | None = None

    async def open(self) -> bool:
        """Start to listen, and return whether that succeeded."""
        if self._server is None:
            with suppress_and_log(_log, "listen for agents", OSError):
                self._server = await asyncio.start_server(
                    self._serve, *self._address, limit=_MAX_BYTES, backlog=_BACKLOG
                )
                _log.info("listening for agents on %s:%d", *self._address)
        return self._server is not None

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress_and_log(_log, "answer an agent", *_BAD_REQUEST_ERRORS):
                status, text = await asyncio.wait_for(self._respond(reader), _TIMEOUT_SECONDS)
                head = f"HTTP/1.0 {status.value} {status.phrase}\r\nContent-Type: text/plain"
                writer.write(f"{head}\r\n\r\n{text}\n".encode())
                await asyncio.wait_for(writer.drain(), _TIMEOUT_SECONDS)
        finally:
            writer.close()

    async def _respond(self, reader: asyncio.StreamReader) -> tuple[HTTPStatus, str]:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        request, *lines = head.split("\r\n")
        headers = {k.strip().lower(): v.strip() for k, _, v in (x.partition(":") for x in lines)}
        method, _, rest = request.partition(" ")
        _, resource, name, *_ = [*rest.partition(" ")[0].split("/"), "", ""]
        if method == "GET" and resource == "lease" and name in _ROLES:
            return self._lease(_ROLES[name])
        is_authorized = self._is_authorized(headers.get("authorization", ""))
        if method == "GET" and resource == "nodes" and self._ray is not None:
            return await self._nodes(self._ray) if is_authorized else _FORBIDDEN
        if method == "POST" and resource == "interruptions" and name:
            if not is_authorized:
                return _FORBIDDEN
            length = headers.get("content-length", "")
            size = int(length) if length.isdigit() else 0
            body = await reader.readexactly(min(size, _MAX_BYTES))
            return self._interruption(name, body.decode("utf-8", "replace"))
        return HTTPStatus.NOT_FOUND, "not found"

    async def _nodes(self, ray: RayNodes) -> tuple[HTTPStatus, str]:
        try:
            nodes = await asyncio.to_thread(ray.live_nodes)
        except ShoalError as error:
            return HTTPStatus.SERVICE_UNAVAILABLE, str(error)
        return HTTPStatus.OK, json.dumps({"nodes": nodes})

    def _lease(self, role: Role) -> tuple[HTTPStatus, str]:
        seconds = self._handler.lease(role)
        if seconds is None:
            return HTTPStatus.SERVICE_UNAVAILABLE, "controller loop is stalled"
        return HTTPStatus.OK, str(round(seconds))

    def _interruption(self, node_id: str, text: str) -> tuple[HTTPStatus, str]:
        try:
            notice = parse(text)
        except ValueError as error:
            return HTTPStatus.BAD_REQUEST, str(error)
        if not self._handler.on_interruption(node_id, notice):
            return HTTPStatus.NOT_FOUND, "unknown node"
        return HTTPStatus.OK, "accepted"

    def _is_authorized(self, authorization: str) -> bool:
        try:
            token = self._token.read_text().strip()
        except OSError:
            return False
        return bool(token) and hmac.compare_digest(
            authorization.encode(), f"Bearer {token}".encode()
        )


def make_agent_server(
    handler: Handler, config: ControllerConfig, directory: Path, ray: RayNodes | None = None
) -> AgentServer:
    """The agent server of the cluster with this config; `directory` is the controller's."""
    address = agents.controller_host(config.gcs_address)
    return AgentServer(handler, address, agents.CONTROLLER_PORT, directory.parent / TOKEN, ray)
