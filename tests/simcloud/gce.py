"""The endpoint of the simulated Compute Engine, under Google's own host names.

It checks tokens and permissions, injects faults, records calls and costs in the ledger, and
updates the simulated hosts after every call that may change them.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
import socket
import time
from typing import Any, Literal

from aiohttp import web

from tests.simcloud.calls import ApiError, Call
from tests.simcloud.faults import Faults, Trouble
from tests.simcloud.gce_calls import GceCalls
from tests.simcloud.gce_hosts import GceHosts
from tests.simcloud.gce_iam import GceIam
from tests.simcloud.gce_metadata import GceMetadata
from tests.simcloud.gce_requests import Refused
from tests.simcloud.gce_store import PROJECT, PROJECT_NUMBER, GceStore, Vm
from tests.simcloud.gce_tls import API_HOSTS, BUNDLE, METADATA_HOST, Authority
from tests.simcloud.gce_wire import denied, error_for, read_route, render
from tests.simcloud.host_image import Machine
from tests.simcloud.hosts import Host
from tests.simcloud.instances import Builder
from tests.simcloud.keys import new_key
from tests.simcloud.ledger import Ledger, Rental, Thing
from tests.simcloud.network import METADATA, SERVICES, Fabric, on_fabric

_CREDENTIALS = "/etc/simcloud/application_default_credentials.json"
REFRESH_TOKEN = "laptop-refresh-token"
_NOTICE_S = 30.0
# The project of gcloud itself, to which the calls of its users count.
_GCLOUD_PROJECT = "764086051850"


class Gce:
    """A Compute Engine (with IAM and tokens) whose machines are simulated hosts."""

    def __init__(self, builder: Builder, faults: Faults, ledger: Ledger) -> None:
        self.fabric: Fabric = builder.fabric
        self._faults, self._ledger = faults, ledger
        self.authority = Authority()
        self.store = GceStore()
        self.iam = GceIam(self.store.constraints)
        self.hosts = GceHosts(
            builder,
            self.store,
            {"REQUESTS_CA_BUNDLE": BUNDLE},
            self._close_rental,
            self.authority.image,
        )
        self.calls = GceCalls(self.store, self.iam, self.hosts, faults)
        self.metadata = GceMetadata(self.store, self._token_of)
        self.calls.guest_attributes = self.metadata.guest_attributes
        self.denied = self.iam.denied
        self.disabled_apis: set[str] = set()
        """Services (`compute`, `iam`) that the project has not enabled."""
        self.needs_quota_project = False
        """Whether calls to other services than Compute Engine must name a project that pays."""
        self.local_address: tuple[str, int] = ("", 0)
        """Where the process that runs the test finds the endpoint."""
        self._numbers = itertools.count(1)
        self._tokens: dict[str, str] = {}
        self._runners: list[web.AppRunner] = []
        self._baseline: set[Thing] = set()
        credentials = self.authority.image / _CREDENTIALS.lstrip("/")
        credentials.parent.mkdir(parents=True)
        credentials.write_text(json.dumps(user_credentials()))
        self.credentials = credentials

    # -- for tests -----------------------------------------------------------------------------

    def environment(self) -> dict[str, str]:
        """The environment of a user who has logged in to Google Cloud."""
        return {"REQUESTS_CA_BUNDLE": BUNDLE, "GOOGLE_APPLICATION_CREDENTIALS": _CREDENTIALS}

    def names(self) -> list[Machine]:
        """Google's host names, as entries for the hosts file of every machine."""
        key = new_key("google")
        return [
            Machine(API_HOSTS[0], SERVICES, key, aliases=API_HOSTS[1:]),
            Machine(METADATA_HOST, METADATA, key, aliases=("metadata",)),
        ]

    def vm(self, name: str) -> Vm:
        """The machine with this name, in whichever zone."""
        return next(vm for vm in self.store.vms.values() if vm.name == name)

    def host(self, name: str) -> Host:
        """The simulated host of a machine."""
        host = self.hosts.host(self.vm(name).id)
        if host is None:
            raise LookupError(f"no host for {name}")
        return host

    def boot_delay(self, seconds: float) -> None:
        """Delay machines by this much before they run, also those that boot now."""
        self.fabric.loop.call_soon_threadsafe(self.hosts.delay_boots, seconds)

    @on_fabric
    async def preempt(self, name: str, seconds: float = _NOTICE_S) -> None:
        """Announce the preemption of a spot machine, and stop or delete it then."""
        vm = self.vm(name)
        self.metadata.preempted.add(vm.id)
        await self.metadata.notify()
        self.hosts.run_in_background(self._end_preempted(vm, seconds))

    async def _end_preempted(self, vm: Vm, seconds: float) -> None:
        await asyncio.sleep(seconds)
        action = (vm.resource.get("scheduling") or {}).get("instanceTerminationAction")
        vm.state = "shutting-down" if action == "DELETE" else "stopping"
        await self.hosts.reconcile()

    @on_fabric
    async def set_leftover_baseline(self) -> None:
        """Count everything that exists now as the user's own: it is not a leftover later."""
        self._baseline = set(self._things())

    @on_fabric
    async def leftovers(self) -> list[Thing]:
        """The resources that exist now but not in the baseline."""
        left = set(self._things()) - self._baseline
        return sorted(left, key=lambda thing: (thing.kind, thing.id))

    def _things(self) -> list[Thing]:
        return [*self.store.things(), *self.iam.things()]

    # -- lifecycle -----------------------------------------------------------------------------

    async def open(self, local: socket.socket) -> None:
        """Listen under Google's names, and on the test's own loopback."""
        host, port = local.getsockname()
        self.local_address = (host, port)
        application = web.Application(client_max_size=32 << 20)
        application.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        self._runners.append(runner)
        tls = self.authority.server_context()
        await web.SockSite(runner, local, ssl_context=tls).start()
        await web.TCPSite(runner, SERVICES, 443, ssl_context=tls).start()

    async def close(self) -> None:
        await self.hosts.close()
        self.hosts.images.close()
        for runner in self._runners:
            await runner.cleanup()
        self.authority.close()

    def _close_rental(self, id: str) -> None:
        rental = self._ledger.rentals.get(id)
        if rental:
            rental.ended = time.time()

    # -- handling of a call --------------------------------------------------------------------

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        host = request.host.partition(":")[0]
        if host == "oauth2.googleapis.com":
            return await self._issue(request)
        route = read_route(host, request.method, request.path)
        if route is None:
            return web.Response(status=404, text="<html><title>Error 404 (Not Found)!!1</title>")
        action, path = route
        text = await request.text()
        service = action.partition(".")[0]
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        call = Call(
            number=next(self._numbers),
            service=service,
            action=action,
            region=path.get("zone") or path.get("region") or "global",
            access_key=self._tokens.get(token, ""),
            source=request.remote or "",
            params={**path, **dict(request.query), "body": text},
            token=request.query.get("requestId"),
        )
        quota_project = request.headers.get("x-goog-user-project") or _GCLOUD_PROJECT
        await asyncio.sleep(self._faults.latency_s)
        outcome = await self._respond(call, path, text, quota_project)
        if outcome is Trouble.LOST:
            self._ledger.note(call, "lost")
            if request.transport:
                request.transport.close()
            return web.Response()
        if isinstance(outcome, ApiError):
            self._ledger.note(call, outcome.code)
            return web.json_response(render(outcome, service), status=outcome.status)
        self._ledger.note(call, None)
        return web.json_response(outcome)

    async def _respond(
        self, call: Call, path: dict[str, str], text: str, quota_project: str
    ) -> Any | ApiError | Literal[Trouble.LOST]:
        if refusal := self._refuse(call, path, quota_project):
            return refusal
        try:
            body = json.loads(text) if text else {}
            launch = self.calls.read_launch(call, body)
            trouble = await self._faults.verdict("before", call, launch)
            self.calls.stockout = trouble is Trouble.NO_CAPACITY
            if trouble is None or (trouble is Trouble.NO_CAPACITY and not self.calls.at_once):
                response = await self._execute(call, path, body)
                trouble = await self._faults.verdict("after", call, launch)
                if trouble is None:
                    return response
        except json.JSONDecodeError:
            return ApiError("parseError", "Parse Error", 400)
        except Refused as refused:
            return refused.error
        if isinstance(trouble, Trouble) and trouble is not Trouble.LOST:
            return error_for(trouble, launch)
        return trouble

    def _refuse(self, call: Call, path: dict[str, str], quota_project: str) -> ApiError | None:
        identity = call.access_key
        if not identity or identity in self._faults.revoked:
            message = (
                "Request had invalid authentication credentials. Expected OAuth 2 access token, "
                "login cookie or other valid authentication credential."
            )
            return ApiError("authError", message, 401)
        project = path["project"]
        is_image = call.action.startswith("compute.images.get")
        if project != PROJECT and not is_image:
            if call.service == "compute":
                message = f"Failed to find project {project}"
                return ApiError("notFound", message, 404)
            return ApiError("PERMISSION_DENIED", "The caller does not have permission", 403)
        counts_elsewhere = (
            self.needs_quota_project
            and call.service != "compute"
            and quota_project == _GCLOUD_PROJECT
        )
        if call.service in self.disabled_apis or counts_elsewhere:
            number = _GCLOUD_PROJECT if counts_elsewhere else PROJECT_NUMBER
            name = {"compute": "Compute Engine API", "iam": "Identity and Access Management API"}
            message = (
                f"{name.get(call.service, call.service)} has not been used in project "
                f"{number} before or it is disabled. Enable it by visiting "
                f"https://console.developers.google.com/apis/api/{call.service}.googleapis.com/"
                f"overview?project={number} then retry."
            )
            return ApiError("accessNotConfigured", message, 403)
        permission = self.calls.permission(call.action)
        if call.action.endswith("Operations.wait") or call.action.endswith("Operations.get"):
            return None
        for resource in _resources(call, path):
            if identity == "laptop":
                allowed = permission not in self.denied
            else:
                allowed = self.iam.grants(identity, permission, resource)
            if not allowed:
                return denied(permission, resource)
        return None

    async def _execute(self, call: Call, path: dict[str, str], body: dict[str, Any]) -> Any:
        before = set(self.store.vms)
        if call.service == "compute":
            response = await self.calls.respond(call, path, body)
        else:
            response = self.iam.respond(call.action, path, body)
        self._ledger.witness(self._things(), call)
        for key in set(self.store.vms) - before:
            vm = self.store.vms[key]
            self._ledger.rentals[vm.id] = Rental(
                vm.id, vm.machine_type, vm.market, vm.zone, call, time.time()
            )
        return response

    # -- tokens --------------------------------------------------------------------------------

    async def _issue(self, request: web.Request) -> web.Response:
        form = await request.post()
        known = form.get("refresh_token") == REFRESH_TOKEN
        if not known or "laptop" in self._faults.revoked:
            body = {
                "error": "invalid_grant",
                "error_description": "Token has been expired or revoked.",
            }
            return web.json_response(body, status=400)
        token = self._token_of("laptop")
        return web.json_response(
            {"access_token": token, "expires_in": 3599, "token_type": "Bearer", "scope": "all"}
        )

    def _token_of(self, identity: str) -> str:
        for token, owner in self._tokens.items():
            if owner == identity:
                return token
        token = "ya29." + secrets.token_urlsafe(24)
        self._tokens[token] = identity
        return token


def _resources(call: Call, path: dict[str, str]) -> list[str]:
    """The instances that a call is about, or else the project."""
    project = f"projects/{PROJECT}"
    if ".instances." not in call.action:
        return [project]
    try:
        body = json.loads(call.params["body"] or "{}")
    except json.JSONDecodeError:
        return [project]
    names = [path.get("name") or body.get("name"), *(body.get("perInstanceProperties") or ())]
    where = f"{project}/zones/{path.get('zone', '')}/instances/"
    return [f"{where}{name}" for name in names if name] or [project]


def user_credentials() -> dict[str, str]:
    """What `gcloud auth application-default login` leaves on a laptop."""
    return {
        "type": "authorized_user",
        "client_id": "a-client.apps.googleusercontent.com",
        "client_secret": "not-a-secret-in-a-simulated-cloud",
        "refresh_token": REFRESH_TOKEN,
    }
