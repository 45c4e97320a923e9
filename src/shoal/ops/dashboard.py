"""Forwards a cluster's Ray dashboard to this machine and logs the browser in.

Ray's dashboard reads the cluster's token from a cookie. Cookies are per host, not per port, so a
local login page on another port sets the cookie that Ray's own login page would set. The page has
a random URL, and exists only while the operation runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
from collections.abc import AsyncIterator, Callable

from shoal.cluster.handle import ClusterHandle
from shoal.core.errors import ConfigError
from shoal.core.events import DashboardOpened, Warned
from shoal.core.logs import suppress_and_log
from shoal.jobs.connection import read_token
from shoal.ops.context import Context
from shoal.remote.runner import PortForward
from shoal.spec.cluster_spec import ClusterSpec

_log = logging.getLogger(__name__)

DEFAULT_PORT = 8265
_TRIED_PORTS = 20
_LOCALHOST = "127.0.0.1"
_COOKIE = "ray-authentication-token"
_TIMEOUT_SECONDS = 30.0
_REQUEST_LIMIT = 8192


async def show(
    ctx: Context,
    spec: ClusterSpec,
    *,
    port: int | None = None,
    remote_port: int | None = None,
    on_open: Callable[[str], None] = lambda url: None,
) -> None:
    """Forward the dashboard until cancelled, and call `on_open` with its URL once it is open. The
    default `port` is 8265, or the next free one."""
    cluster = ClusterHandle.of(ctx, spec)
    head = await cluster.head()
    runner = cluster.runner(head)
    start = cluster.ray_start(head, head)
    remote = start.dashboard_port if remote_port is None else remote_port
    forwards: list[PortForward] = []
    if start.dashboard and port is None:  # the head is this machine: nothing to forward
        host, local = head.address, remote
    else:
        host, local = _LOCALHOST, _free_port() if port is None else port
        forwards = [PortForward(local, remote)]
    page = f"http://{host}:{local}/"

    async with contextlib.AsyncExitStack() as stack:
        url = page
        if spec.shoal.auth == "token":
            token = await read_token(runner, start)
            url = await stack.enter_async_context(_login_page(host, page, token))
        checks: list[asyncio.Task[None]] = []

        def is_open() -> None:
            checks.append(asyncio.ensure_future(_check_response(ctx, host, local, remote)))
            ctx.emit(DashboardOpened(spec.cluster_name, url))
            on_open(url)

        await runner.forward(forwards, is_open)


def _free_port() -> int:
    for port in range(DEFAULT_PORT, DEFAULT_PORT + _TRIED_PORTS):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((_LOCALHOST, port))
            except OSError as error:
                _log.debug("port %s is not free: %s", port, error)
            else:
                return port
    raise ConfigError(
        f"no free local port from {DEFAULT_PORT} to {DEFAULT_PORT + _TRIED_PORTS - 1}",
        fix="choose one with --port",
    )


@contextlib.asynccontextmanager
async def _login_page(host: str, page: str, token: str) -> AsyncIterator[str]:
    """Serve the page that sets the cookie and redirects to the dashboard; yields its URL."""
    path = f"/{secrets.token_urlsafe(24)}"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        failures = (OSError, ValueError, asyncio.TimeoutError)
        with suppress_and_log(_log, "answer a login request", *failures):
            line = await asyncio.wait_for(reader.readline(), _TIMEOUT_SECONDS)
            writer.write(_reply(line, path, page, token))
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, host, 0, limit=_REQUEST_LIMIT)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield f"http://{host}:{port}{path}"


def _reply(request_line: bytes, path: str, page: str, token: str) -> bytes:
    method, _, rest = request_line.decode("latin-1").partition(" ")
    requested_path = rest.partition(" ")[0]
    if method != "GET" or not secrets.compare_digest(requested_path.encode(), path.encode()):
        return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    # A refresh instead of a redirect status: browsers send a SameSite=Strict cookie only with
    # requests from the same site, and a redirect after a link from elsewhere is not one.
    body = f'<!doctype html><meta http-equiv="refresh" content="0;url={page}">'
    headers = [
        "HTTP/1.1 200 OK",
        "Content-Type: text/html",
        f"Content-Length: {len(body)}",
        f"Set-Cookie: {_COOKIE}={token}; Path=/; HttpOnly; SameSite=Strict",
        "Cache-Control: no-store",
        "Referrer-Policy: no-referrer",
        "Connection: close",
    ]
    return "\r\n".join([*headers, "", body]).encode()


async def _check_response(ctx: Context, host: str, local: int, remote: int) -> None:
    """Warn if no dashboard answers: an open tunnel does not prove that."""
    answer = b""
    with suppress_and_log(_log, "reach the dashboard", OSError, asyncio.TimeoutError):
        reader, writer = await asyncio.open_connection(host, local)
        writer.write(f"GET /api/authentication_mode HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
        answer = await asyncio.wait_for(reader.readline(), _TIMEOUT_SECONDS)
        writer.close()
    if not answer:
        ctx.emit(
            Warned(
                "the dashboard does not answer",
                why=f"nothing is listening on port {remote} of the head",
                fix="set its port with --remote-port, or install ray[default] on the head",
            )
        )
