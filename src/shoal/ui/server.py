"""Starts the page on a port of loopback, and ends it with everything that it started."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import webbrowser
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from aiohttp import web

from shoal.core.errors import ConfigError, ShoalError
from shoal.ops import cloud_account, cluster_lookup, dashboard
from shoal.ops.cluster_lookup import ClusterRef
from shoal.ops.cluster_watch import UPDATE_SECONDS, ClusterWatches
from shoal.ops.context import Context
from shoal.ui import access, live, simulation, views
from shoal.ui.access import Access
from shoal.ui.actions import Actions
from shoal.ui.workloads import Workloads

_log = logging.getLogger(__name__)

_HOST = "127.0.0.1"
_STATIC = Path(__file__).parent / "static"
_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
_MAX_REQUEST_BYTES = 16 * 2**20
# How long a page that was closed may take to come back before its question is answered with no.
_RELOAD_SECONDS = 5.0
# How long a dashboard may take to open.
_DASHBOARD_SECONDS = 60.0


@contextlib.asynccontextmanager
async def serve(
    ctx: Context,
    *,
    port: int = 0,
    read_only: bool = False,
    every: float = UPDATE_SECONDS,
    open_browser: Callable[[str], object] = webbrowser.open,
) -> AsyncIterator[str]:
    """Serve the page while the context lasts; yields its URL, which contains the token. Port 0 is
    any free one. `open_browser` opens the dashboards of clusters."""
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((_HOST, port))
        except OSError as error:
            raise ConfigError(
                f"cannot listen on port {port} of {_HOST}",
                why=error.strerror or str(error),
                fix="choose another one with --port",
            ) from None
        rules = Access.on(listening.getsockname()[1], read_only=read_only)
        page = _Page(ctx, rules, every, open_browser)
        runner = web.AppRunner(
            page.application(), access_log=None, shutdown_timeout=1.0, handler_cancellation=True
        )
        await runner.setup()
        watching = asyncio.ensure_future(page.watches.run())
        try:
            await web.SockSite(runner, listening).start()
            bound = listening.getsockname()[1]
            yield f"http://{_HOST}:{bound}/#token={rules.token}"
        finally:
            page.close()
            watching.cancel()
            await asyncio.gather(watching, *page.dashboards.values(), return_exceptions=True)
            await runner.cleanup()


class _Page:
    """The handlers of one start."""

    def __init__(
        self,
        ctx: Context,
        rules: Access,
        every: float,
        open_browser: Callable[[str], object],
    ) -> None:
        self._ctx = ctx
        self._rules = rules
        self._open_browser = open_browser
        self._actions = Actions(ctx)
        self._workloads = Workloads(ctx)
        self._urls: dict[str, str] = {}
        self.watches = ClusterWatches(ctx, every=every)
        self.dashboards: dict[str, asyncio.Task[None]] = {}

    def application(self) -> web.Application:
        application = web.Application(
            middlewares=[access.middleware(self._rules)], client_max_size=_MAX_REQUEST_BYTES
        )
        application.on_response_prepare.append(access.add_headers)
        work = self._workloads
        cluster = "/api/clusters/{cluster}"
        application.add_routes(
            [
                web.get("/", self._static),
                web.get("/static/{name}", self._static),
                web.get("/api/session", self._session),
                web.get("/api/stream", self._stream),
                web.get("/api/account", self._account),
                web.get(f"{cluster}/log", work.node_log),
                web.get(f"{cluster}/jobs", work.jobs),
                web.get(f"{cluster}/jobs/{{id}}/log", work.job_log),
                web.get(f"{cluster}/trainings", work.trainings),
                web.get(f"{cluster}/trainings/{{id}}", work.training),
                web.get(f"{cluster}/trainings/{{id}}/log", work.training_log),
                web.post(f"{cluster}/dashboard", self._open_dashboard),
                web.post(f"{cluster}/actions/{{action}}", self._start_action),
                web.get("/api/actions/{id}", self._follow_action),
                web.post("/api/actions/{id}/answer", self._answer),
                web.get("/api/sweeps", work.sweeps),
                web.get("/api/sweeps/{id}", work.sweep),
                web.get("/api/sweeps/{id}/runs/{run}/log", work.run_log),
                web.post("/api/simulations", simulation.simulate),
            ]
        )
        return application

    def close(self) -> None:
        self._actions.refuse_questions()
        for task in self.dashboards.values():
            task.cancel()

    async def _static(self, request: web.Request) -> web.Response:
        name = request.match_info.get("name", "index.html")
        path = _STATIC / name
        if path.parent != _STATIC or path.suffix not in _TYPES or not path.is_file():
            raise web.HTTPNotFound
        return web.Response(body=path.read_bytes(), content_type=_TYPES[path.suffix])

    async def _session(self, request: web.Request) -> web.Response:
        return web.json_response({"read_only": self._rules.read_only})

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        return await live.stream(request, self.watches.watches)

    async def _account(self, request: web.Request) -> web.Response:
        """The clusters of the cloud accounts in all regions."""
        listed = await cloud_account.list_clusters(self._ctx)
        return web.json_response([asdict(cluster) for cluster in listed])

    async def _start_action(self, request: web.Request) -> web.Response:
        cluster = request.match_info["cluster"]
        live.watch_of(self.watches.watches, cluster)
        action = self._actions.start(
            cluster, request.match_info["action"], await _json_object(request)
        )
        return web.json_response({"id": action.id})

    async def _follow_action(self, request: web.Request) -> web.StreamResponse:
        """The events of an action as server-sent events, until it is done."""
        action = self._actions.get(request.match_info["id"])
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        action.readers += 1
        seen = 0
        try:
            with contextlib.suppress(ConnectionError):  # the page was closed
                while not action.is_done or seen < len(action.events):
                    events = await action.wait(seen)
                    seen += len(events)
                    text = "".join(f"data: {views.encode(event)}\n\n" for event in events)
                    await response.write(text.encode())
        finally:
            action.readers -= 1
            asyncio.get_running_loop().call_later(_RELOAD_SECONDS, action.page_has_gone)
        return response

    async def _answer(self, request: web.Request) -> web.Response:
        asked = await _json_object(request)
        if not isinstance(asked.get("yes"), bool):
            raise ConfigError("an answer is {yes: true} or {yes: false}")
        self._actions.get(request.match_info["id"]).answer(asked["yes"])
        return web.json_response({})

    async def _open_dashboard(self, request: web.Request) -> web.Response:
        """Open Ray's dashboard in the browser of this machine. Its URL grants access to the
        cluster, so it goes to the browser and not through the page."""
        name = request.match_info["cluster"]
        live.watch_of(self.watches.watches, name)
        task = self.dashboards.get(name)
        if task is None or task.done():
            await self._forward_dashboard(name)
        else:
            self._open_browser(self._urls[name])
        return web.json_response({})

    async def _forward_dashboard(self, name: str) -> None:
        spec = await cluster_lookup.resolve(self._ctx, ClusterRef(name))
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_open(url: str) -> None:
            self._urls[name] = url
            self._open_browser(url)
            opened.set_result(None)

        showing = asyncio.ensure_future(dashboard.show(self._ctx, spec, on_open=on_open))
        self.dashboards[name] = showing
        either: set[asyncio.Future[None]] = {showing, opened}
        await asyncio.wait(either, timeout=_DASHBOARD_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if showing.done():
            showing.result()
        elif not opened.done():
            showing.cancel()
            raise ShoalError("the dashboard did not open", why=f"not within {_DASHBOARD_SECONDS} s")


async def _json_object(request: web.Request) -> dict[str, Any]:
    try:
        content = json.loads(await request.text() or "{}")
    except ValueError as error:
        raise ConfigError("the request is not JSON", why=str(error)) from None
    if not isinstance(content, dict):
        raise ConfigError("the request is not a JSON object")
    return content
