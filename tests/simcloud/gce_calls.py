"""What each call to the simulated Compute Engine does."""

from __future__ import annotations

import copy
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from tests.simcloud import gce_offers
from tests.simcloud.calls import ApiError, Call, Launch
from tests.simcloud.faults import Faults, Trouble
from tests.simcloud.gce_filters import FilterRefused, parse_filter
from tests.simcloud.gce_hosts import GceHosts
from tests.simcloud.gce_iam import GceIam
from tests.simcloud.gce_launch import GceLauncher
from tests.simcloud.gce_operations import Operations
from tests.simcloud.gce_requests import Refused, check_labels, check_name, find_image
from tests.simcloud.gce_store import (
    API,
    MACHINE_TYPES,
    PROJECT,
    REGION_OF,
    ZONES,
    GceStore,
    Vm,
    fingerprint,
    metadata_of,
    now,
    offers,
)
from tests.simcloud.gce_wire import fold, not_found

Body = Mapping[str, Any]
_MAX_PAGE = 500
_READS = ("list", "aggregatedList")


class GceCalls:
    """The calls of Compute Engine on one project. Lives on the fabric's loop."""

    def __init__(self, store: GceStore, iam: GceIam, hosts: GceHosts, faults: Faults) -> None:
        self.store, self._hosts, self._faults = store, hosts, faults
        self.operations = Operations(hosts.run_in_background)
        self.launcher = GceLauncher(store, iam, hosts, faults, self.operations)
        self.guest_attributes: dict[str, dict[str, str]] = {}
        self.guest_attributes_allowed = True
        self.stockout = False
        """Whether the call that is being answered finds no capacity."""
        self.at_once = False
        """Whether a lack of capacity is a refusal instead of a failed operation."""
        self._requests: dict[str, Any] = {}

    def permission(self, action: str) -> str:
        """The permission that a call needs first."""
        service, kind, verb = action.split(".")
        if service == "cloudresourcemanager":
            service = "resourcemanager"
        verbs = {
            "insert": "create",
            "bulkInsert": "create",
            "aggregatedList": "list",
            "patch": "update",
            "getFromFamily": "get",
        }
        return f"{service}.{kind}.{verbs.get(verb, verb)}"

    def read_launch(self, call: Call, body: Body) -> Launch | None:
        """What a call for machines asks for; None for other calls."""
        if call.action == "compute.instances.bulkInsert":
            properties = body.get("instanceProperties") or {}
            count = int(body.get("count") or 0)
            at_least = int(body.get("minCount") or count)
        elif call.action == "compute.instances.insert":
            properties, count, at_least = body, 1, 1
        else:
            return None
        scheduling = fold(properties.get("scheduling") or {})
        is_spot = scheduling.get("preemptible") or scheduling.get("provisioningModel") == "SPOT"
        return Launch(
            type=str(properties.get("machineType", "")).rpartition("/")[2],
            zone=call.params["zone"],
            market="spot" if is_spot else "on-demand",
            at_least=at_least,
            at_most=count,
        )

    async def respond(self, call: Call, path: Mapping[str, str], body: Body) -> Any:
        _, kind, verb = call.action.split(".")
        if zone := path.get("zone"):
            self._check_zone(zone)
        if (region := path.get("region")) and region not in ZONES:
            raise Refused(not_found(f"projects/{PROJECT}/regions/{region}"))
        if call.token and call.token in self._requests:
            return self._requests[call.token]  # Google ignores a repeated request
        if verb in _READS:
            response = self._list(kind, verb, call)
        elif kind.endswith("Operations"):
            if verb == "wait":
                found = await self.operations.wait(path["name"])
            else:
                found = self.operations.get(path["name"])
            if found is None:
                raise Refused(not_found(f"operations/{path['name']}"))
            return found
        elif kind == "instances" and verb in ("insert", "bulkInsert"):
            launch = self.read_launch(call, body)
            assert launch is not None
            shortened = self._faults.shorten(launch)
            is_short = isinstance(shortened, Trouble)
            count = 0 if isinstance(shortened, Trouble) else shortened.at_most
            available = 0 if self.stockout or is_short else count
            if verb == "insert":
                response = self.launcher.insert(path["zone"], body, available)
            else:
                response = self.launcher.bulk_insert(path["zone"], body, available)
        elif kind == "instances":
            response = self._instance_call(kind, verb, path, body, call)
        elif kind == "firewalls":
            response = self._firewall_call(kind, verb, path, body, call)
        elif kind == "disks":
            response = self._disk_call(kind, verb, path, body, call)
        else:
            response = self._get(kind, verb, path, body, call)
        if verb == "get" and kind not in ("projects", "instances"):
            scopes = [f"{key}s/{path[key]}" for key in ("zone", "region") if key in path]
            response = _shown(kind, response, *scopes or ("global",))
        if call.token:
            self._requests[call.token] = response
        return response

    def _check_zone(self, zone: str) -> None:
        if zone not in REGION_OF:
            message = f"Invalid value for field 'zone': '{zone}'. Unknown zone."
            raise Refused(ApiError("invalid", message, 400))

    # -- reads ---------------------------------------------------------------------------------

    def _get(self, kind: str, verb: str, path: Mapping[str, str], body: Body, call: Call) -> Any:
        name = path.get("name", "")
        if verb == "setCommonInstanceMetadata":
            self.store.project_metadata = metadata_of({"metadata": body})
            return self.operations.start(verb, f"projects/{PROJECT}", "global", self._reconcile)
        if kind == "projects":
            items = [{"key": k, "value": v} for k, v in self.store.project_metadata.items()]
            metadata = {"items": items}
            quotas = self._quotas(None)
            return {"name": PROJECT, "commonInstanceMetadata": metadata, "quotas": quotas}
        if kind == "zones":
            return _zone(path["zone"])
        if kind == "regions":
            return self._region(path["region"])
        if kind == "images":
            family = "family/" if verb == "getFromFamily" else ""
            project, image = find_image(f"projects/{path['project']}/global/images/{family}{name}")
            return gce_offers.image(project, image)
        if kind == "instanceTemplates" and name in self.store.instance_templates:
            return {"name": name, "properties": self.store.instance_templates[name]}
        if kind == "machineImages" and name in self.store.machine_images:
            return {"name": name, "instanceProperties": self.store.machine_images[name]}
        if kind == "machineTypes" and gce_offers.has_machine_type(path["zone"], name):
            return gce_offers.machine_type(name)
        if kind == "networks" and name in self.store.networks:
            return self.store.networks[name]
        if kind == "subnetworks" and name in self.store.networks:
            return _subnetwork(name, path["region"])
        raise Refused(not_found(f"projects/{PROJECT}/{kind}/{name}"))

    async def _reconcile(self, operation: dict[str, Any]) -> None:
        await self._hosts.reconcile()

    def _region(self, region: str) -> dict[str, Any]:
        zones = [f"{API}/projects/{PROJECT}/zones/{zone}" for zone in ZONES[region]]
        return {"name": region, "status": "UP", "quotas": self._quotas(region), "zones": zones}

    def _quotas(self, region: str | None) -> list[dict[str, Any]]:
        return [
            {"metric": metric, "limit": limit, "usage": self.launcher.usage(metric, where)}
            for (where, metric), limit in self.launcher.quotas.items()
            if where == region
        ]

    def _list(self, kind: str, verb: str, call: Call) -> Any:
        zone, region = call.params.get("zone", ""), call.params.get("region", "")
        everything: dict[str, Callable[[], Iterable[Mapping[str, Any]]]] = {
            "zones": lambda: map(_zone, REGION_OF),
            "regions": lambda: map(self._region, ZONES),
            "machineTypes": lambda: [
                gce_offers.machine_type(n) for n in MACHINE_TYPES if offers(zone, n)
            ],
            "acceleratorTypes": lambda: gce_offers.accelerator_types(zone),
            "routers": lambda: self.store.routers.get(region, []),
            "networks": lambda: self.store.networks.values(),
            "subnetworks": lambda: [_subnetwork(n, region) for n in self.store.networks],
            "firewalls": lambda: self.store.firewalls.values(),
            "instances": lambda: [vm.shown() for vm in self._visible(zone)],
            "disks": lambda: [d for (z, _), d in self.store.disks.items() if zone in ("", z)],
        }
        try:
            wanted = parse_filter(call.params.get("filter", ""))
        except FilterRefused as refused:
            raise Refused(refused.error) from None
        scope = f"zones/{zone}" if zone else f"regions/{region}" if region else "global"
        items = [_shown(kind, item, scope) for item in everything[kind]() if wanted(item)]
        size = min(int(call.params.get("maxResults") or _MAX_PAGE), _MAX_PAGE)
        start = int(call.params.get("pageToken") or 0)
        page: Any = items[start : start + size]
        if verb == "aggregatedList":
            scopes: dict[str, Any] = {f"zones/{zone}": {} for zone in REGION_OF}
            for item in page:
                scope = "zones/" + str(item["zone"]).rpartition("/")[2]
                scopes[scope].setdefault(kind, []).append(item)
            page = scopes
        # Google leaves out the list when it is empty.
        response: dict[str, Any] = {"items": page} if page else {}
        if start + size < len(items):
            response["nextPageToken"] = str(start + size)
        return response

    def _visible(self, zone: str) -> Sequence[Vm]:
        lag = self._faults.listing_lag_s
        return [
            vm
            for vm in self.store.vms.values()
            if zone in ("", vm.zone) and time.monotonic() - vm.born >= lag
        ]

    # -- instances -----------------------------------------------------------------------------

    def _instance_call(
        self, kind: str, verb: str, path: Mapping[str, str], body: Body, call: Call
    ) -> Any:
        zone, name = path["zone"], path["name"]
        target = f"zones/{zone}/instances/{name}"
        vm = self.store.vms.get((zone, name))
        if vm is None:
            raise Refused(not_found(f"projects/{PROJECT}/{target}"))
        if verb == "get":
            return vm.shown()
        if verb == "getGuestAttributes":
            return self._guest_attributes(vm, call.params.get("queryPath", ""))
        if verb == "getSerialPortOutput":
            text = self._hosts.serial_output(vm.id)
            return {"contents": text, "start": "0", "next": str(len(text))}
        if verb in ("setLabels", "setMetadata", "setTags"):
            return self._set(verb, vm, copy.deepcopy(dict(body)), target, zone)
        if verb == "stop" and vm.state not in ("running", "stopped", "stopping"):
            message = f"The resource 'projects/{PROJECT}/{target}' is not ready"
            raise Refused(ApiError("resourceNotReady", message, 400))
        state = {"delete": "shutting-down", "stop": "stopping", "start": "pending"}[verb]
        ends = {"delete": "", "stop": "stopped", "start": "running"}[verb]
        return self.operations.start(verb, target, f"zones/{zone}", self._changer(vm, state, ends))

    def _changer(
        self, vm: Vm, state: str, ends: str
    ) -> Callable[[dict[str, Any]], Awaitable[None]]:
        if vm.state != ends:
            vm.state = state

        async def work(operation: dict[str, Any]) -> None:
            if not vm.accepted and state == "shutting-down":
                self.store.remove(vm)
                return
            await self._hosts.reconcile()
            await self.launcher.until(vm, ends)

        return work

    def _set(self, verb: str, vm: Vm, body: dict[str, Any], target: str, zone: str) -> Any:
        given = body.pop("labelFingerprint", None) or body.pop("fingerprint", None)
        labels = vm.resource.get("labels") or {}
        current = {
            "setLabels": labels,
            "setMetadata": metadata_of(vm.resource),
            "setTags": vm.tags,
        }[verb]
        if given != fingerprint(current):
            what = "Labels" if verb == "setLabels" else "Metadata" if "Meta" in verb else "Tags"
            message = f"{what} fingerprint either invalid or resource {what.lower()} have changed"
            raise Refused(ApiError("conditionNotMet", message, 412))
        if verb == "setLabels":
            check_labels(body.get("labels") or {})
            vm.resource["labels"] = body.get("labels") or {}
        else:
            vm.resource["metadata" if verb == "setMetadata" else "tags"] = body

        async def work(operation: dict[str, Any]) -> None:
            await self._hosts.reconcile()

        return self.operations.start(verb, target, f"zones/{zone}", work)

    def _guest_attributes(self, vm: Vm, query: str) -> Any:
        if not self.guest_attributes_allowed:
            message = "Guest attributes endpoint access is disabled."
            raise Refused(ApiError("forbidden", message, 403))
        enabled = metadata_of(vm.resource).get("enable-guest-attributes", "").upper() == "TRUE"
        values = dict(self.guest_attributes.get(vm.id, {}))
        if enabled and vm.state == "running" and vm.id in self._hosts.host_keys:
            algorithm, key, *_ = self._hosts.host_keys[vm.id].split()
            values[f"hostkeys/{algorithm}"] = key
        found = {k: v for k, v in values.items() if enabled and k.startswith(query)}
        if not found:
            message = f"The resource '{query}' of type 'Guest Attribute' was not found."
            raise Refused(ApiError("notFound", message, 404))
        pairs = [key.split("/", 1) for key in found]
        items = [
            {"namespace": namespace, "key": key, "value": found[f"{namespace}/{key}"]}
            for namespace, key in pairs
        ]
        return {"queryPath": query, "queryValue": {"items": items}}

    # -- firewall rules and disks ----------------------------------------------------------------

    def _firewall_call(
        self, kind: str, verb: str, path: Mapping[str, str], body: Body, call: Call
    ) -> Any:
        name = path.get("name") or str(body.get("name", ""))
        target = f"global/firewalls/{name}"
        exists = name in self.store.firewalls
        if verb != "insert" and not exists:
            raise Refused(not_found(f"projects/{PROJECT}/{target}"))
        if verb == "get":
            return self.store.firewalls[name]
        if verb == "insert":
            check_name(name)
            if exists:
                message = f"The resource 'projects/{PROJECT}/{target}' already exists"
                raise Refused(ApiError("alreadyExists", message, 409))
            if str(body.get("network", "")).rpartition("/")[2] not in self.store.networks:
                raise Refused(not_found(f"projects/{PROJECT}/{body.get('network')}"))
        if verb == "delete":
            del self.store.firewalls[name]
        else:
            known = self.store.firewalls.get(name, {"creationTimestamp": now()})
            self.store.firewalls[name] = {**known, **body}

        async def work(operation: dict[str, Any]) -> None:
            await self._hosts.reconcile()

        return self.operations.start(verb, target, "global", work)

    def _disk_call(
        self, kind: str, verb: str, path: Mapping[str, str], body: Body, call: Call
    ) -> Any:
        key = (path["zone"], path["name"])
        target = f"zones/{key[0]}/disks/{key[1]}"
        if key not in self.store.disks:
            raise Refused(not_found(f"projects/{PROJECT}/{target}"))
        disk = self.store.disks[key]
        if verb == "get":
            return disk
        if disk["users"]:
            message = f"The disk resource '{target}' is already being used"
            raise Refused(ApiError("resourceInUseByAnotherResource", message, 400))
        del self.store.disks[key]
        return self.operations.start(verb, target, f"zones/{key[0]}", _nothing)


async def _nothing(operation: dict[str, Any]) -> None:
    """The work of an operation that has taken effect already."""


def _shown(kind: str, resource: Mapping[str, Any], scope: str) -> dict[str, Any]:
    """A resource with what Google returns of every kind; `scope` is where it is."""
    if kind in ("zones", "regions"):
        scope = kind
    elif "zone" in resource:  # in a list of all zones
        scope = "zones/" + str(resource["zone"]).rpartition("/")[2] + f"/{kind}"
    else:
        scope = f"{scope}/{kind}"
    return {
        "kind": f"compute#{kind[:-1]}",
        "selfLink": f"{API}/projects/{PROJECT}/{scope}/{resource['name']}",
        **resource,
    }


def _zone(name: str) -> dict[str, Any]:
    region = f"{API}/projects/{PROJECT}/regions/{REGION_OF[name]}"
    return {"name": name, "status": "UP", "region": region}


def _subnetwork(name: str, region: str) -> dict[str, Any]:
    network = f"{API}/projects/{PROJECT}/global/networks/{name}"
    where = f"{API}/projects/{PROJECT}/regions/{region}"
    return {"name": name, "network": network, "region": where, "ipCidrRange": "10.138.0.0/20"}
