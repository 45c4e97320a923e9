"""The endpoint of the simulated AWS: every call passes here on its way to moto.

It checks credentials, injects faults, records calls and costs in the ledger, makes launches
idempotent by their token, and updates the simulated hosts after every call that may change them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Mapping
from email.utils import formatdate
from typing import Any, Literal
from xml.etree import ElementTree

import aiohttp
from aiohttp import web

from tests.simcloud import aws_limits
from tests.simcloud.aws_calls import (
    MISMATCH,
    credential_error,
    error_for,
    read_call,
    read_launch,
    render,
)
from tests.simcloud.aws_encryption import Encryption
from tests.simcloud.aws_market import DISABLED_REGIONS, Market, xml_response
from tests.simcloud.aws_permissions import Permissions
from tests.simcloud.calls import ApiError, Call, Launch
from tests.simcloud.faults import Faults, Trouble
from tests.simcloud.hosts import Host
from tests.simcloud.instances import Builder, Instances, Record
from tests.simcloud.ledger import Ledger, Rental, Thing
from tests.simcloud.metadata import Metadata
from tests.simcloud.moto_pool import PORT, new_backend
from tests.simcloud.network import METADATA, SERVICES, Fabric, on_fabric

REGION = "us-west-2"
ACCESS_KEY = "AKIASIMCLOUDLAPTOP00"
"""The laptop's."""
ADMIN_KEY = "AKIASIMCLOUDADMIN000"
"""That of the test's own process, which may do everything."""
_SECRET_KEY = "not-a-secret-in-a-simulated-cloud"
_BACKEND = f"http://127.0.0.1:{PORT}"
_BACKEND_DEADLINE_S = 120
_READS = ("Describe", "Get", "List", "Search")
_CHECKIP = "/checkip"  # replaces AWS's service that returns the caller's address
_HOP_HEADERS = {"host", "content-length", "transfer-encoding", "connection"}

Response = tuple[int, dict[str, str], bytes]


class Ec2:
    """An EC2 (with IAM, STS and SSM) whose instances are simulated hosts."""

    def __init__(self, builder: Builder, faults: Faults, ledger: Ledger) -> None:
        self.fabric: Fabric = builder.fabric
        self.url = f"http://{SERVICES}"
        """The endpoint, seen from the laptop and from every host."""
        self.local_url = ""
        """The same endpoint, seen from the process that runs the test."""
        self._faults, self._ledger = faults, ledger
        self.market = Market()
        """Prices, and the quotas that a test may set."""
        self.encryption = Encryption()
        """The key of volumes, which a test may set."""
        self.permissions = Permissions()
        """What callers may do, which a test may limit."""
        self.instances = Instances(
            builder, self, {"AWS_ENDPOINT_URL": self.url}, self._close_rental
        )
        self.metadata = Metadata(self.instances, self)
        self._numbers = itertools.count(1)
        self._starting = asyncio.Lock()
        self._backend: int | None = None
        self._session: aiohttp.ClientSession | None = None
        self._runners: list[web.AppRunner] = []
        self._changing = asyncio.Lock()
        self._launched: dict[tuple[str, str], tuple[Mapping[str, str], Response]] = {}
        self._baseline: set[Thing] = set()
        self.snapshot_delay_s = 0.0
        """How long after an image is created its snapshot begins. What is on the disk then is in
        it, also if the image is gone."""
        self.image_delay_s = 0.0
        """How long an image that is created is pending."""
        self.fail_images = 0
        """How many of the next images fail while they are pending."""

    # -- for tests -----------------------------------------------------------------------------

    def environment(self) -> dict[str, str]:
        """Return the environment of a user with an AWS account."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "SHOAL_CHECKIP_URL": self.url + _CHECKIP,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": _SECRET_KEY,
            "AWS_DEFAULT_REGION": REGION,
        }

    def client_options(self) -> dict[str, str]:
        """Return the options of `boto3.client("ec2", **options)` in the test's own process."""
        return {
            "endpoint_url": self.local_url,
            "region_name": REGION,
            "aws_access_key_id": ADMIN_KEY,
            "aws_secret_access_key": _SECRET_KEY,
        }

    def host(self, instance_id: str) -> Host:
        """Return the simulated host of an instance."""
        host = self.instances.host(instance_id)
        if host is None:
            raise LookupError(f"no host for {instance_id}")
        return host

    def boot_delay(self, seconds: float) -> None:
        """Delay instances by this much between `pending` and `running`, also those that boot now,
        so that 0 lets them continue at once."""
        self.fabric.loop.call_soon_threadsafe(self.instances.delay_boots, seconds)

    @on_fabric
    async def spot_notice(self, instance_id: str, seconds: float = 120) -> None:
        """Announce the interruption of a spot instance in its metadata, and terminate it then."""
        self.metadata.announce_spot_end(instance_id, time.time() + seconds)
        self.instances.run_in_background(self._interrupt(instance_id, seconds))

    @on_fabric
    async def rebalance_recommendation(self, instance_id: str) -> None:
        """Publish a rebalance recommendation in a spot instance's metadata."""
        self.metadata.recommend_rebalance(instance_id, time.time())

    @on_fabric
    async def maintenance_notice(self, instance_id: str, seconds: float = 3600) -> None:
        """Announce the retirement of an instance's hardware in its metadata."""
        self.metadata.announce_maintenance(instance_id, time.time() + seconds)

    async def _interrupt(self, instance_id: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        (record,) = [r for r in (await self.inventory())["instances"] if r["id"] == instance_id]
        reason = ("Server.SpotInstanceTermination", "Spot instance termination")
        await self.set_state(record, "shutting-down", reason)
        await self.instances.reconcile()

    @on_fabric
    async def set_leftover_baseline(self) -> None:
        """Count everything that exists now as the user's own: it is not a leftover later."""
        self._baseline = set(_things(await self.inventory()))

    @on_fabric
    async def leftovers(self) -> list[Thing]:
        """Return the resources that exist now but not in the baseline."""
        if self._backend is None:
            return []
        left = set(_things(await self.inventory())) - self._baseline
        return sorted(left, key=lambda thing: (thing.kind, thing.id))

    # -- lifecycle -----------------------------------------------------------------------------

    async def open(self, local: socket.socket, metadata_handler: Any) -> None:
        """Listen at the endpoint, at the metadata address, and on the test's own loopback."""
        host, port = local.getsockname()
        self.local_url = f"http://{host}:{port}"
        self._session = aiohttp.ClientSession(auto_decompress=False)
        api = await self._serve(self._handle)
        await web.SockSite(api, local).start()
        await web.TCPSite(api, SERVICES, 80).start()
        metadata = await self._serve(metadata_handler)
        await web.TCPSite(metadata, METADATA, 80).start()

    async def _serve(self, handler: Any) -> web.AppRunner:
        application = web.Application(client_max_size=32 << 20)
        application.router.add_route("*", "/{path:.*}", handler)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        self._runners.append(runner)
        return runner

    async def close(self) -> None:
        await self.instances.close()
        self.instances.images.close()
        for runner in self._runners:
            await runner.cleanup()
        if self._session:
            await self._session.close()
        if self._backend:
            os.kill(self._backend, signal.SIGKILL)

    @on_fabric
    async def warm_up(self) -> None:
        """Start moto now rather than at the first call."""
        async with self._starting:
            if self._backend is not None:
                return
            network = f"/proc/{os.getpid()}/task/{threading.get_native_id()}/ns/net"
            backend = await asyncio.to_thread(new_backend, network)
            deadline = time.monotonic() + _BACKEND_DEADLINE_S
            while True:
                try:
                    self._baseline = set(_things(await self.inventory()))
                    break
                except aiohttp.ClientConnectionError:
                    if time.monotonic() > deadline:
                        raise
                    await asyncio.sleep(0.01)
            self._backend = backend

    # -- records -------------------------------------------------------------------------------

    async def inventory(self) -> dict[str, list[Record]]:
        records: dict[str, list[Record]] = await self._ask_backend("inventory", {})
        return records

    async def set_state(
        self, record: Record, state: str, reason: tuple[str, str] | None = None
    ) -> None:
        request = {
            "id": record["id"],
            "region": record["region"],
            "state": state,
            "reason": reason,
        }
        await self._ask_backend("set_state", request)

    async def _ask_backend(self, action: str, request: dict[str, Any]) -> Any:
        assert self._session is not None
        async with self._session.post(f"{_BACKEND}/simcloud/{action}", json=request) as reply:
            if reply.status != 200:
                raise RuntimeError(f"moto's process failed to {action}:\n{await reply.text()}")
            return await reply.json()

    def _close_rental(self, instance_id: str) -> None:
        rental = self._ledger.rentals.get(instance_id)
        if rental:
            rental.ended = time.time()

    # -- handling of a call --------------------------------------------------------------------

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if request.path == _CHECKIP:
            return web.Response(text=f"{request.remote}\n")
        await self.warm_up()
        body = await request.read()
        call = read_call(
            next(self._numbers),
            request.headers,
            request.query_string,
            body.decode(errors="replace"),
            request.remote or "",
        )
        await asyncio.sleep(self._faults.latency_s)
        outcome = await self._respond(call, request, body)
        if outcome is Trouble.LOST:
            self._ledger.note(call, "lost")
            if request.transport:
                request.transport.close()
            return web.Response()
        if isinstance(outcome, ApiError):
            self._ledger.note(call, outcome.code)
            content_type, text = render(outcome, call.service)
            date = formatdate(time.time() + self._faults.clock_ahead_s, usegmt=True)
            return web.Response(
                status=outcome.status, text=text, content_type=content_type, headers={"Date": date}
            )
        status, headers, content = outcome
        self._ledger.note(call, _error_code(status, content))
        return web.Response(status=status, headers=headers, body=content)

    async def _respond(
        self, call: Call, request: web.Request, body: bytes
    ) -> Response | ApiError | Literal[Trouble.LOST]:
        is_enabled = call.region not in DISABLED_REGIONS
        if not self._is_valid(call.access_key) or not is_enabled:
            return credential_error(call.service)
        if refusal := aws_limits.refuse_clock(call, self._faults.clock_ahead_s):
            return refusal
        if refusal := aws_limits.refuse(call):
            return refusal
        if refusal := await self._refuse_permission(call, body):
            return refusal
        launch = None
        if call.action == "RunInstances":
            subnets = (await self.inventory())["subnets"]
            launch = read_launch(call, {subnet["id"]: subnet["zone"] for subnet in subnets})
        trouble = await self._faults.verdict("before", call, launch)
        if trouble is None:
            response = await self._execute(call, launch, request, body)
            trouble = await self._faults.verdict("after", call, launch)
        if trouble is None:
            return response
        if isinstance(trouble, Trouble) and trouble is not Trouble.LOST:
            return error_for(trouble, launch)
        return trouble

    def _is_valid(self, access_key: str) -> bool:
        known = {ACCESS_KEY, ADMIN_KEY, *self.metadata.issued_keys}
        return access_key in known and access_key not in self._faults.revoked

    async def _refuse_permission(self, call: Call, body: bytes) -> ApiError | None:
        role = self.metadata.issued_keys.get(call.access_key)
        is_limited = call.access_key in self.permissions.limits
        if not is_limited and not (role and self.permissions.limits_roles):
            return None
        return self.permissions.refuse(call, body, await self.inventory(), role)

    async def _execute(
        self, call: Call, launch: Launch | None, request: web.Request, body: bytes
    ) -> Response | ApiError:
        response = self.market.respond(call, body)
        if response is not None:
            return response
        if (content := self.encryption.respond(call)) is not None:
            return xml_response(call.action, content)
        if call.action.startswith(_READS):
            response = await self._forward(request, body)
            lag = self._faults.listing_lag_s
            if lag and call.action.startswith("DescribeInstance"):
                response = self._hide_recent(response, lag)
            return response
        async with self._changing:  # one change at a time
            key = (call.region, call.token or "")
            if launch and key in self._launched:
                params, earlier = self._launched[key]
                return earlier if params == call.params else MISMATCH
            if launch:
                shortened = self._faults.shorten(launch)
                if isinstance(shortened, Trouble):
                    return error_for(shortened, launch)
                # EC2 launches up to MaxCount; moto launches MinCount.
                count = rb"\1=%d" % shortened.at_most
                body = re.sub(rb"\b(MinCount|MaxCount)=\d+", count, body)
            response = await self._forward(request, body)
            if launch and call.token and response[0] == 200:
                self._launched[key] = (call.params, response)
            if launch and not await self._may_use_volume_key(call.access_key):
                self.instances.fail_at_launch = launch.at_most
            if response[0] == 200:
                await self._copy_disk(call, response[2])
            await self._take_effect(call)
            return response

    async def _copy_disk(self, call: Call, reply: bytes) -> None:
        """Put the disk of an instance behind the AMI that was made from it."""
        images = self.instances.images
        created = re.search(rb"<imageId>([^<]+)</imageId>", reply)
        if call.action == "CreateImage" and created:
            instance_id, image = call.params["InstanceId"], created[1].decode()
            if self.snapshot_delay_s:
                await self._ask_backend("hide_snapshot", {"id": image})
            else:
                await self._begin_snapshot(instance_id, image)
            if self.snapshot_delay_s or self.image_delay_s or self.fail_images:
                await self.set_image_state(image, "pending")
                self.instances.run_in_background(self._finish_image(instance_id, image))
            if call.params.get("NoReboot") != "true":
                await self.instances.reboot(instance_id)
        elif call.action == "DeregisterImage":
            images.remove(call.params["ImageId"])

    async def _begin_snapshot(self, instance_id: str, image: str) -> None:
        host = self.instances.host(instance_id)
        if host is not None and host.running:
            layers, source = host.disk_layers(), self.instances.image(instance_id)
            await asyncio.to_thread(self.instances.images.copy, image, layers, source)

    async def _finish_image(self, instance_id: str, image: str) -> None:
        failed, self.fail_images = self.fail_images > 0, max(0, self.fail_images - 1)
        if self.snapshot_delay_s:
            await asyncio.sleep(self.snapshot_delay_s)
            await self._begin_snapshot(instance_id, image)
            await self._ask_backend("begin_snapshot", {"id": image})
        await asyncio.sleep(self.image_delay_s)
        await self.set_image_state(image, "failed" if failed else "available")

    async def set_image_state(self, image: str, state: str) -> None:
        await self._ask_backend("set_image_state", {"id": image, "state": state})

    async def _may_use_volume_key(self, access_key: str) -> bool:
        role = self.metadata.issued_keys.get(access_key)
        roles = (await self.inventory())["roles"] if role else []
        return all(self.encryption.may_use(r) for r in roles if r["id"] == role)

    async def _forward(self, request: web.Request, body: bytes) -> Response:
        assert self._session is not None
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOP_HEADERS}
        url = _BACKEND + request.path_qs
        async with self._session.request(request.method, url, headers=headers, data=body) as reply:
            passed = {k: v for k, v in reply.headers.items() if k.lower() not in _HOP_HEADERS}
            return reply.status, passed, await reply.read()

    async def _take_effect(self, call: Call) -> None:
        if call.action == "RebootInstances":
            for name, instance_id in call.params.items():
                if name.startswith("InstanceId."):
                    await self.instances.reboot(instance_id)
        new = await self.instances.reconcile()
        self._ledger.witness(_things(await self.inventory()), call)
        for record in new:
            self._ledger.rentals[record["id"]] = Rental(
                id=record["id"],
                type=record["type"],
                market=record["market"],
                zone=record["zone"],
                asked_by=call,
                began=time.time(),
            )

    def _hide_recent(self, response: Response, lag: float) -> Response:
        """Hide instances that a lagging listing would not show yet."""
        status, headers, body = response
        with contextlib.suppress(ElementTree.ParseError):
            root = ElementTree.fromstring(body)
            space = root.tag.partition("}")[0] + "}"
            ElementTree.register_namespace("", space.strip("{}"))
            for parent in root.iter():
                for item in list(parent):
                    identity = item.find(f"{space}instanceId")
                    is_recent = (
                        identity is not None
                        and identity.text is not None
                        and self.instances.age(identity.text) < lag
                    )
                    if is_recent:
                        parent.remove(item)
            for reservations in root.iter(f"{space}reservationSet"):
                for reservation in list(reservations):
                    instances = reservation.find(f"{space}instancesSet")
                    if instances is not None and not len(instances):
                        reservations.remove(reservation)
            body = ElementTree.tostring(root)
        return status, headers, body


def _error_code(status: int, body: bytes) -> str | None:
    if status < 400:
        return None
    code = re.search(rb"<Code>([^<]+)</Code>", body)
    return code[1].decode() if code else str(status)


def _things(inventory: dict[str, list[Record]]) -> list[Thing]:
    """Return every resource that must not be left behind."""
    things = [
        Thing("instance", r["id"]) for r in inventory["instances"] if r["state"] != "terminated"
    ]
    things += [
        Thing("security group", r["id"], r["name"])
        for r in inventory["groups"]
        if r["name"] != "default"  # EC2 creates one with every VPC, and keeps it
    ]
    things += [Thing("key pair", r["id"], r["name"]) for r in inventory["keys"]]
    titles = {
        "volumes": "volume",
        "images": "image",
        "snapshots": "snapshot",
        "addresses": "address",
        "profiles": "instance profile",
        "roles": "role",
    }
    for key, title in titles.items():
        things += [Thing(title, r["id"]) for r in inventory[key]]
    return things
