"""The API of Nimbus, the made-up cloud of the example provider, with faults. What an instance is,
the test decides."""

from __future__ import annotations

import itertools
import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

PRICES = {"small": 0.05, "large": 0.4}

# Boots and destroys what is behind an instance: an address for the keys that may log in, and the
# end of an address.
Boot = Callable[[list[str]], Awaitable[str]]
Destroy = Callable[[str], Awaitable[None]]


class NimbusApi:
    """An HTTP API that launches, lists and terminates instances. `refusal` is the status with which
    it answers launches, `capacity` how many instances there may be, `lag_s` how long a new one is
    not listed."""

    url = ""

    def __init__(self, boot: Boot, destroy: Destroy) -> None:
        self._boot = boot
        self._destroy = destroy
        self._numbers = itertools.count(1)
        self.records: dict[str, dict[str, Any]] = {}
        self.calls: list[str] = []
        self.refusal = 0
        self.capacity = 1000
        self.lag_s = 0.0

    async def open(self, host: str, port: int) -> web.AppRunner:
        application = web.Application()
        application.router.add_get("/sizes", self._sizes)
        application.router.add_get("/instances", self._list)
        application.router.add_post("/instances", self._launch)
        application.router.add_delete("/instances/{id}", self._terminate)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, host, port).start()
        return runner

    def heal(self) -> None:
        """End all faults."""
        self.refusal, self.capacity, self.lag_s = 0, 1000, 0.0

    async def _sizes(self, request: web.Request) -> web.Response:
        return web.json_response(PRICES)

    async def _list(self, request: web.Request) -> web.Response:
        cluster = request.query.get("cluster")
        listed = [r for r in self.records.values() if r["created_at"] + self.lag_s <= time.time()]
        return web.json_response([r for r in listed if cluster in (None, r["labels"]["cluster"])])

    async def _launch(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.calls.append("launch")
        if self.refusal:
            return web.Response(status=self.refusal, text="refused")
        token = body.get("token")
        launched = [r for r in self.records.values() if token and r["token"] == token]
        missing = body["count"] - len(launched)
        if missing and self.capacity <= len(self.records):
            return web.Response(status=507, text="no capacity")
        for _ in range(min(missing, self.capacity - len(self.records))):
            record = {
                "id": f"n-{next(self._numbers)}",
                "state": "pending",
                "address": "",
                "created_at": time.time(),
                "price_per_hour": PRICES[body["size"]],
                "token": token,
                "labels": body["labels"],
            }
            self.records[record["id"]] = record  # before it boots: the same token may come again
            record["address"] = await self._boot(body.get("ssh_keys", []))
            record["state"] = "running"
            launched.append(record)
        return web.json_response(launched)

    async def _terminate(self, request: web.Request) -> web.Response:
        self.calls.append("terminate")
        record = self.records.pop(request.match_info["id"], None)
        if record is None:
            return web.Response(status=404, text="no such instance")
        await self._destroy(record["address"])
        return web.json_response({})
