"""The API of vast.ai, as far as `ray-vast` uses it. What runs behind an instance, the test
decides."""

from __future__ import annotations

import asyncio
import itertools
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from tests.polling import until

API_HOST = "console.vast.ai"
# Services that tell a caller the address from which its request came.
ECHO_HOSTS = ("api.ipify.org", "ifconfig.me")
ACCOUNT_KEY = "key"

_FIRST_PORT = 22000
_HOLD_SECONDS = 60


@dataclass(frozen=True)
class Container:
    """What an instance runs: the command that its renter gave, and the environment with what vast
    adds to it."""

    id: int
    public_address: str
    command: Sequence[str]
    environment: dict[str, str]


Boot = Callable[[Container], Awaitable[None]]
Destroy = Callable[[Container], Awaitable[None]]


async def _nothing(container: Container) -> None:
    return None


class VastApi:
    """An HTTP API that rents, lists and destroys instances. `offers` is how many there are. While
    `holds_replies`, offers are rented, and the renter gets no reply. Without `boot`, instances
    stay in the status `loading`. `public_address` is the public address of a caller."""

    def __init__(
        self,
        boot: Boot | None = None,
        destroy: Destroy = _nothing,
        public_address: Callable[[str], str] = str,
    ) -> None:
        self._boot = boot
        self._destroy = destroy
        self._public_address_of_caller = public_address
        self._numbers = itertools.count(100)
        self._boots: dict[int, asyncio.Task[None]] = {}
        self._containers: dict[int, Container] = {}
        self._rented: set[int] = set()
        self.offers = 10
        self.instances: dict[int, dict[str, Any]] = {}
        self.holds_replies = False
        self.url = ""

    async def open(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> web.AppRunner:
        application = web.Application()
        application.router.add_post("/api/v0/bundles/", self._search)
        application.router.add_put("/api/v0/asks/{offer}/", self._rent)
        application.router.add_get("/api/v0/instances/", self._list)
        application.router.add_delete("/api/v0/instances/{id}/", self._end)
        application.router.add_get("/", self._echo)
        application.router.add_get("/ip", self._echo)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, host, port, ssl_context=tls).start()
        self.url = f"http://{host}:{runner.addresses[0][1]}/api/v0"
        return runner

    async def _search(self, request: web.Request) -> web.Response:
        self._authorize(request)
        offers = [
            {
                "id": n,
                "machine_id": n,
                "dph_total": 0.5,
                "direct_port_count": 16,
                "public_ipaddr": _public_address(n),
            }
            # One that was rented does not come back, so that an address is not used twice: the
            # router may still know connections to the host that had it.
            for n in range(self.offers + len(self._rented))
            if n not in self._rented
        ]
        return web.json_response({"offers": offers})

    async def _rent(self, request: web.Request) -> web.Response:
        self._authorize(request)
        body, offer = await request.json(), int(request.match_info["offer"])
        self._rented.add(offer)
        id = next(self._numbers)
        self.instances[id] = {"id": id, "label": body["label"], "actual_status": "loading"}
        container = Container(
            id, _public_address(offer), body["args"], _environment(id, offer, body["env"])
        )
        self._containers[id] = container
        if self._boot is not None:
            self._boots[id] = asyncio.create_task(self._start(self._boot, container))
        await until(lambda: not self.holds_replies, "the reply is sent", timeout=_HOLD_SECONDS)
        return web.json_response({"success": True, "new_contract": id})

    async def _start(self, boot: Boot, container: Container) -> None:
        await boot(container)
        running = {"actual_status": "running", "public_ipaddr": container.public_address}
        if instance := self.instances.get(container.id):
            instance.update(running)

    async def _list(self, request: web.Request) -> web.Response:
        self._authorize(request)
        return web.json_response({"instances": list(self.instances.values())})

    async def _end(self, request: web.Request) -> web.Response:
        id = int(request.match_info["id"])
        self._authorize(request, id)
        if self.instances.pop(id, None) is None:
            return web.json_response({"success": False}, status=404)
        if boots := self._boots.pop(id, None):
            await boots
            # The container may have sent this request: it gets no reply from a host that is gone.
            await self._destroy(self._containers[id])
        return web.json_response({"success": True})

    async def _echo(self, request: web.Request) -> web.Response:
        return web.Response(text=self._public_address_of_caller(request.remote or ""))

    def _authorize(self, request: web.Request, id: int | None = None) -> None:
        """Refuse a caller without the key of the account or, for one instance, that of the
        instance."""
        allowed = {f"Bearer {ACCOUNT_KEY}", f"Bearer {_instance_key(id)}"}
        if request.headers.get("Authorization") not in allowed:
            raise web.HTTPUnauthorized


def _public_address(offer: int) -> str:
    return f"203.0.113.{offer + 100}"


def _instance_key(id: int | None) -> str:
    return f"{ACCOUNT_KEY} of {id}"


def _environment(id: int, offer: int, requested: dict[str, str]) -> dict[str, str]:
    """The environment of a container. vast opens a port of the host for each `-p` option; where
    that names a port above 65535, the container has the same one."""
    ports = [name.rpartition(":")[2] for name in requested if name.startswith("-p ")]
    return {
        **{name: value for name, value in requested.items() if not name.startswith("-p ")},
        **{f"VAST_TCP_PORT_{port}": str(_FIRST_PORT + n) for n, port in enumerate(ports)},
        "CONTAINER_ID": str(id),
        "CONTAINER_API_KEY": _instance_key(id),
        "PUBLIC_IPADDR": _public_address(offer),
    }
