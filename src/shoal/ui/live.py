"""Sends what has changed to each open page, as server-sent events over one request."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

from aiohttp import web

from shoal.core.errors import NotFoundError
from shoal.ops.cluster_watch import ClusterWatch
from shoal.ui import views

_CHECK_SECONDS = 0.5
# A silent stream looks like a dead server.
_PING_CHECKS = 10


async def stream(request: web.Request, watches: Mapping[str, ClusterWatch]) -> web.StreamResponse:
    """Send the summaries of all clusters and, with `?cluster=NAME`, all of that cluster."""
    name = request.query.get("cluster")
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    page = _Page(watches, name)
    checks = 0
    with contextlib.suppress(ConnectionError):  # the page was closed
        while True:
            events = page.events()
            if events or checks % _PING_CHECKS == 0:
                events = events or ["event: ping\ndata: {}\n\n"]
                await response.write("".join(events).encode())
            checks += 1
            await asyncio.sleep(_CHECK_SECONDS)
    return response


def watch_of(watches: Mapping[str, ClusterWatch], name: str) -> ClusterWatch:
    if name not in watches:
        raise NotFoundError(f"unknown cluster: {name!r}", fix="shoal ls")
    return watches[name]


class _Page:
    """What one page has been sent."""

    def __init__(self, watches: Mapping[str, ClusterWatch], name: str | None) -> None:
        self._watches = watches
        self._name = name
        self._versions: dict[str, int] = {}
        self._summaries: dict[str, str] = {}
        self._is_first = True
        self._detail_version = -1
        self._history = views.HistoryCursor()

    def events(self) -> list[str]:
        changed = []
        for name, watch in self._watches.items():
            if self._versions.get(name) != watch.version:
                self._versions[name] = watch.version
                text = views.encode(views.summary(watch))
                if self._summaries.get(name) != text:
                    self._summaries[name] = text
                    changed.append(text)
        events = []
        if changed or self._is_first:
            events.append(_event("clusters", f"[{','.join(changed)}]"))
        self._is_first = False
        watch_of_page = self._watches.get(self._name or "")
        if watch_of_page is not None and watch_of_page.version != self._detail_version:
            self._detail_version = watch_of_page.version
            events.append(_event("cluster", views.encode(views.detail(watch_of_page))))
            news = self._history.news(watch_of_page.history)
            if news is not None:
                events.append(_event("history", views.encode(news)))
        return events


def _event(kind: str, data: str) -> str:
    return f"event: {kind}\ndata: {data}\n\n"
