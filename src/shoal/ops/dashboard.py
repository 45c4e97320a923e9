"""Opens a cluster's dashboard to a browser of this machine, already logged in.

Ray's dashboard takes the cluster's token from a cookie. Cookies belong to a host, not to a port:
so a page of our own, on another port, hands the browser the cookie that Ray's login page would
have set. The page's address is random, and neither it nor the token outlives the operation.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import AsyncIterator, Callable

from shoal.cluster.handle import ClusterHandle
from shoal.core.errors import ConfigError, SetupError
from shoal.core.events import DashboardOpened, Warned
from shoal.ops.context import Context
from shoal.ray_runtime.ray_start import RayStart
from shoal.remote.runner import PortForward, Runner, capture
from shoal.spec.cluster_spec import ClusterSpec

DEFAULT_PORT = 8265
_TRIED_PORTS = 20
_HERE = "127.0.0.1"
_COOKIE = "ray-authentication-token"
_SECONDS = 30.0
_REQUEST_LIMIT = 8192


async def show(
    ctx: Context,
    spec: ClusterSpec,
    *,
    port: int | None = None,
    remote_port: int | None = None,
    opened: Callable[[str], None] = lambda url: None,
) -> None:
    """Keep the dashboard open here until cancelled; `opened` gets its address once it is. Without
    a `port`, it is Ray's usual one, or the next that is free."""
    cluster = ClusterHandle.of(ctx, spec)
    head = await cluster.head()
    runner = cluster.runner(head)
    start = cluster.ray_start(head, head)
    remote = start.dashboard_port if remote_port is None else remote_port
    if start.dashboard:  # it is on this machine
        host, local = head.address, remote
    else:
        host, local = _HERE, _free_port() if port is None else port
    page = f"http://{host}:{local}/"

    async with contextlib.AsyncExitStack() as stack:
        url = page
        if spec.shoal.auth == "token":
            token = await _token(runner, start)
            url = await stack.enter_async_context(_login_page(host, page, token))
        checks: list[asyncio.Task[None]] = []

        def is_open() -> None:
            checks.append(asyncio.ensure_future(_check_answers(ctx, host, local, remote)))
            ctx.emit(DashboardOpened(spec.cluster_name, url))
            opened(url)

        await runner.forward([PortForward(local, remote)], is_open)


async def _token(runner: Runner, start: RayStart) -> str:
    command = start.with_prelude('cat "$RAY_AUTH_TOKEN_PATH"')
    done, printed = await capture(runner, command, env=start.driver_env(), timeout=_SECONDS)
    if not done.ok or not printed:
        # Without the output, which could hold part of the token.
        raise SetupError(
            "the head does not have the cluster's token", fix="shoal up makes it", node="head"
        )
    return printed[0].strip()


def _free_port() -> int:
    for port in range(DEFAULT_PORT, DEFAULT_PORT + _TRIED_PORTS):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind((_HERE, port))
                return port
    raise ConfigError(
        f"no port from {DEFAULT_PORT} on is free on this machine", fix="choose one with --port"
    )


@contextlib.asynccontextmanager
async def _login_page(host: str, page: str, token: str) -> AsyncIterator[str]:
    """Serve the page that sets the cookie and leads to the dashboard; yields its address."""
    path = f"/{secrets.token_urlsafe(24)}"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ValueError, asyncio.TimeoutError):
            line = await asyncio.wait_for(reader.readline(), _SECONDS)
            writer.write(_reply(line, path, page, token))
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, host, 0, limit=_REQUEST_LIMIT)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield f"http://{host}:{port}{path}"


def _reply(request_line: bytes, path: str, page: str, token: str) -> bytes:
    method, _, rest = request_line.decode("latin-1").partition(" ")
    asked = rest.partition(" ")[0]
    if method != "GET" or not secrets.compare_digest(asked.encode(), path.encode()):
        return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    # The page leads on by itself instead of by its status: a browser gives a strict cookie only
    # to requests that come from the same cluster, and following a link from elsewhere is none.
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


async def _check_answers(ctx: Context, host: str, local: int, remote: int) -> None:
    """Warn when nothing is behind the port: an open tunnel alone does not tell."""
    answer = b""
    with contextlib.suppress(OSError, asyncio.TimeoutError):
        reader, writer = await asyncio.open_connection(host, local)
        writer.write(f"GET /api/authentication_mode HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
        answer = await asyncio.wait_for(reader.readline(), _SECONDS)
        writer.close()
    if not answer:
        ctx.emit(
            Warned(
                "no dashboard answers",
                why=f"nothing listens at port {remote} of the head",
                fix="name its port with --remote-port, or see that the head has ray[default]",
            )
        )
