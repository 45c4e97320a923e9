"""The metadata server of Google's machines, with its header, its layout and its hanging reads."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from aiohttp import web

from tests.simcloud.gce_store import PROJECT, PROJECT_NUMBER, GceStore, Vm, metadata_of

PREFIX = "/computeMetadata/v1"
_FLAVOR = {"Metadata-Flavor": "Google"}
_MAX_WAIT_S = 600.0


class GceMetadata:
    """Responds by source address, so that a machine can read only its own metadata."""

    def __init__(self, store: GceStore, issue_token: Callable[[str], str]) -> None:
        self._store, self._issue_token = store, issue_token
        self.preempted: set[str] = set()
        self.maintenance: dict[str, str] = {}
        self.guest_attributes: dict[str, dict[str, str]] = {}
        self.waiting = 0
        """How many reads wait for a change."""
        self._changes: set[asyncio.Event] = set()  # one for each request that waits

    async def notify(self) -> None:
        """Wake the reads that wait for a change."""
        for change in self._changes:
            change.set()

    async def handle(self, request: web.Request) -> web.Response:
        vm = self._find(request.remote or "")
        if vm is None:
            return web.Response(status=404, text="no metadata for this address\n")
        if request.headers.get("Metadata-Flavor") != "Google":
            text = "Missing Metadata-Flavor:Google header.\n"
            return web.Response(status=403, text=text)
        if request.headers.get("X-Forwarded-For"):
            return web.Response(status=403, text="Forwarded requests are refused.\n")
        if not request.path.startswith(PREFIX):
            return web.Response(text="computeMetadata/\n", headers=_FLAVOR)
        path = request.path[len(PREFIX) :].strip("/")
        if request.method == "PUT":
            return await self._put(vm, path, await request.text())
        if request.query.get("wait_for_change") == "true":
            await self._wait(vm, path, request)
        value = _look_up(self._tree(vm), path)
        if value is None:
            return web.Response(status=404, text="404 - Not Found\n", headers=_FLAVOR)
        if request.query.get("recursive") == "true":
            return web.json_response(value, headers=_FLAVOR)
        etag = {"ETag": _etag(value)}
        kind = "application/json" if path.endswith("/token") else "application/text"
        return web.Response(text=_text(value), headers={**_FLAVOR, **etag}, content_type=kind)

    async def _wait(self, vm: Vm, path: str, request: web.Request) -> None:
        seconds = min(float(request.query.get("timeout_sec") or _MAX_WAIT_S), _MAX_WAIT_S)
        known = request.query.get("last_etag") or _etag(_look_up(self._tree(vm), path))

        def has_changed() -> bool:
            return _etag(_look_up(self._tree(vm), path)) != known

        async def change() -> None:
            while not has_changed():
                await event.wait()
                event.clear()

        event = asyncio.Event()
        self._changes.add(event)
        self.waiting += 1
        try:
            await asyncio.wait_for(change(), seconds)
        except asyncio.TimeoutError:
            return
        finally:
            self.waiting -= 1
            self._changes.discard(event)

    async def _put(self, vm: Vm, path: str, text: str) -> web.Response:
        own = metadata_of(vm.resource).get("enable-guest-attributes", "").upper() == "TRUE"
        root, _, key = path.partition("instance/guest-attributes/")
        if root or not own or "/" not in key:
            return web.Response(status=403 if not own else 404, headers=_FLAVOR)
        self.guest_attributes.setdefault(vm.id, {})[key] = text
        return web.Response(headers=_FLAVOR)

    def _find(self, address: str) -> Vm | None:
        return next((vm for vm in self._store.vms.values() if vm.private == address), None)

    def _tree(self, vm: Vm) -> dict[str, Any]:
        accounts: dict[str, Any] = {}
        for account in vm.resource.get("serviceAccounts") or ():
            email = account["email"]
            entry = {
                "aliases": ["default"],
                "email": email,
                "scopes": list(account.get("scopes") or ()),
                "token": json.dumps(
                    {
                        "access_token": self._issue_token(email),
                        "expires_in": 3599,
                        "token_type": "Bearer",
                    }
                ),
            }
            accounts.update({email: entry, "default": entry})
        interface: dict[str, Any] = {"ip": vm.private, "network": vm.network}
        if vm.public:
            interface["access-configs"] = {"0": {"external-ip": vm.public}}
        return {
            "instance": {
                "id": vm.id,
                "name": vm.name,
                "hostname": f"{vm.name}.{vm.zone}.c.{PROJECT}.internal",
                "zone": f"projects/{PROJECT_NUMBER}/zones/{vm.zone}",
                "machine-type": f"projects/{PROJECT_NUMBER}/machineTypes/{vm.machine_type}",
                "tags": json.dumps(vm.tags),
                "attributes": metadata_of(vm.resource),
                "preempted": "TRUE" if vm.id in self.preempted else "FALSE",
                "maintenance-event": self.maintenance.get(vm.id, "NONE"),
                "scheduling": {"preemptible": "TRUE" if vm.market == "spot" else "FALSE"},
                "network-interfaces": {"0": interface},
                "service-accounts": accounts,
            },
            "project": {
                "project-id": PROJECT,
                "numeric-project-id": PROJECT_NUMBER,
                "attributes": dict(self._store.project_metadata),
            },
        }


def _look_up(tree: dict[str, Any], path: str) -> Any:
    node: Any = tree
    for name in filter(None, path.split("/")):
        if not isinstance(node, dict) or name not in node:
            return None
        node = node[name]
    return node


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return "".join(f"{k}/\n" if isinstance(v, dict) else f"{k}\n" for k, v in value.items())
    return "\n".join(value) + "\n" if isinstance(value, list) else str(value)


def _etag(value: Any) -> str:
    return f"{hash(json.dumps(value, sort_keys=True)) & 0xFFFFFFFFFFFF:x}"
