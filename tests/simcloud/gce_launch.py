"""Creation of machines in the simulated Compute Engine: one by insert, many by bulkInsert, with
quotas, and with failures that only the finished operation reports."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Mapping, Sequence
from typing import Any

from tests.simcloud import gce_offers
from tests.simcloud.calls import ApiError
from tests.simcloud.faults import Faults
from tests.simcloud.gce_hosts import GceHosts
from tests.simcloud.gce_iam import GceIam
from tests.simcloud.gce_operations import OperationFailed, Operations
from tests.simcloud.gce_requests import Refused, check_name, read_instance
from tests.simcloud.gce_store import PROJECT, REGION_OF, GceStore, Vm, is_spot
from tests.simcloud.gce_wire import invalid, not_found, stockout

_BOOT_S = 300.0


class GceLauncher:
    """Creates machines. `quotas` has limits by region (None: all regions) and metric."""

    def __init__(
        self,
        store: GceStore,
        iam: GceIam,
        hosts: GceHosts,
        faults: Faults,
        operations: Operations,
    ) -> None:
        self._store, self._iam, self._hosts = store, iam, hosts
        self._faults, self._operations = faults, operations
        self.quotas: dict[tuple[str | None, str], float] = {}
        self.quota_in_operation = True
        """Whether an exceeded quota fails the operation rather than the call."""

    def usage(self, metric: str, region: str | None) -> float:
        """How much of a quota for CPUs is in use."""
        vms = [vm for vm in self._store.vms.values() if region in (None, REGION_OF[vm.zone])]
        running = [vm for vm in vms if vm.state not in ("stopped", "shutting-down")]
        return sum(self._taken(vm.resource, vm.market).get(metric, 0.0) for vm in running)

    def _taken(self, resource: Mapping[str, Any], market: str) -> dict[str, float]:
        """What an instance takes of each quota. Spot instances count against the quotas of others
        where they have none of their own."""
        name = str(resource["machineType"]).rpartition("/")[2]
        accelerators = {
            str(entry["acceleratorType"]).rpartition("/")[2]: int(entry["acceleratorCount"])
            for entry in resource.get("guestAccelerators") or ()
        }
        has_own = any("PREEMPTIBLE" in metric for _, metric in self.quotas)
        own_market = market if has_own else "on-demand"
        return gce_offers.quota_metrics(name, accelerators, own_market)

    def insert(self, zone: str, body: Mapping[str, Any], available: int) -> dict[str, Any]:
        """Accept a machine; with none `available`, the operation fails."""
        given = copy.deepcopy(dict(body))
        image = str(given.pop("sourceMachineImage", "")).rpartition("/")[2]
        if image and image not in self._store.machine_images:
            raise Refused(not_found(f"projects/{PROJECT}/global/machineImages/{image}"))
        completed = {**copy.deepcopy(self._store.machine_images.get(image, {})), **given}
        resource = read_instance(completed, zone, bulk=False)
        name = resource.get("name")
        check_name(name)
        self._check_disks(zone, resource)
        target = f"zones/{zone}/instances/{name}"
        if (zone, name) in self._store.vms:
            message = f"The resource 'projects/{PROJECT}/{target}' already exists"
            raise Refused(ApiError("alreadyExists", message, 409))
        self._check_policies(resource)
        error = self._exceeded(zone, [resource])
        if error and not self.quota_in_operation:
            raise Refused(ApiError("quotaExceeded", error.message, 403))
        vm = self._store.add(zone, resource)

        async def work(operation: dict[str, Any]) -> None:
            if failure := error or (None if available else stockout(zone)):
                self._store.remove(vm)
                raise OperationFailed(failure)
            await self._boot([vm])

        return self._operations.start("insert", target, f"zones/{zone}", work)

    def bulk_insert(self, zone: str, body: Mapping[str, Any], available: int) -> dict[str, Any]:
        """Accept several machines, of which `available` can be had."""
        properties = body.get("instanceProperties") or {}
        template = read_instance(copy.deepcopy(dict(properties)), zone, bulk=True)
        count = int(body.get("count") or 0)
        at_least = int(body.get("minCount") or count)
        per_instance = dict(body.get("perInstanceProperties") or {})
        if not count or (per_instance and len(per_instance) != count):
            message = "The count must be the number of per-instance properties."
            raise Refused(invalid("count", count, message))
        names = list(per_instance)
        if not names:
            raise Refused(invalid("namePattern", "", "Name patterns are not simulated."))
        for name in names:
            check_name(name, "perInstanceProperties")
        self._check_policies(template)
        resources = [{**copy.deepcopy(template), "name": name} for name in names]
        taken = [name for name in names if (zone, name) in self._store.vms]
        fresh = [r for r in resources if r["name"] not in taken]
        error = self._exceeded(zone, fresh)
        if error and not self.quota_in_operation:
            raise Refused(ApiError("quotaExceeded", error.message, 403))
        # Not the first ones: a caller must look which of its names exist.
        made = fresh[-available:] if available and not error else []
        vms = [self._store.add(zone, resource) for resource in (made if made else fresh)]
        status = {"targetVmCount": count, "status": "CREATING"}

        async def work(operation: dict[str, Any]) -> None:
            operation["instancesBulkInsertOperationMetadata"] = {
                "perLocationStatus": {f"zones/{zone}": status}
            }
            status.update(failedToCreateVmCount=count - len(made), status="DONE")
            if len(made) < at_least:
                for vm in vms:  # Google deletes what it has created so far
                    self._store.remove(vm)
                status.update(createdVmCount=0, deletedVmCount=len(made))
                raise OperationFailed(self._why_not(error, zone, taken, at_least))
            status.update(createdVmCount=len(made))
            await self._boot(vms)
            if taken:
                raise OperationFailed(_exists(zone, taken[0]))

        target = f"zones/{zone}"
        return self._operations.start("bulkInsert", target, f"zones/{zone}", work)

    def _why_not(
        self, error: ApiError | None, zone: str, taken: Sequence[str], at_least: int
    ) -> ApiError:
        if error is not None:
            return error
        if taken:
            return _exists(zone, taken[0])
        if at_least == 1:
            return stockout(zone)
        message = f"Requested minimum count of {at_least} VMs could not be created."
        return ApiError("VM_MIN_COUNT_NOT_REACHED", message, 400)

    async def _boot(self, vms: Sequence[Vm]) -> None:
        for vm in vms:
            vm.accepted = True
        await self._hosts.reconcile()
        await asyncio.gather(*(self.until(vm, "running") for vm in vms))

    async def until(self, vm: Vm, state: str) -> None:
        """Return when a machine is in a state, or gone, which is the empty state."""

        async def wait() -> None:
            while self._store.by_id(vm.id) is not None and vm.state != state:
                vm.changed.clear()
                await vm.changed.wait()

        await asyncio.wait_for(wait(), _BOOT_S)

    def _check_disks(self, zone: str, resource: Mapping[str, Any]) -> None:
        for source in (str(d["source"]) for d in resource.get("disks") or () if d.get("source")):
            disk = self._store.disks.get((zone, source.rpartition("/")[2]))
            if disk is None or f"zones/{zone}/" not in source:
                raise Refused(not_found(f"projects/{PROJECT}/{source}"))
            if disk["users"]:
                message = f"The disk resource '{source}' is already being used"
                raise Refused(ApiError("resourceInUseByAnotherResource", message, 400))

    def _check_policies(self, resource: Mapping[str, Any]) -> None:
        constraint = "constraints/compute.vmExternalIpAccess"
        is_public = any(i.get("accessConfigs") for i in resource["networkInterfaces"])
        if is_public and constraint in self._iam.constraints:
            message = f"Constraint {constraint} violated for project {PROJECT}."
            raise Refused(ApiError("conditionNotMet", message, 412))
        for account in resource.get("serviceAccounts") or ():
            if not self._iam.is_usable(account["email"]):
                email = account["email"]
                message = f"The resource 'projects/{PROJECT}/serviceAccounts/{email}' was not found"
                raise Refused(ApiError("invalid", message, 400))

    def _exceeded(self, zone: str, resources: Sequence[Mapping[str, Any]]) -> ApiError | None:
        taken = [self._taken(r, "spot" if is_spot(r) else "on-demand") for r in resources]
        for (region, metric), limit in self.quotas.items():
            if region not in (None, REGION_OF[zone]):
                continue
            wanted = sum(entry.get(metric, 0.0) for entry in taken)
            if wanted and self.usage(metric, region) + wanted > limit:
                where = f"in region {region}" if region else "globally"
                message = f"Quota '{metric}' exceeded.  Limit: {limit:.1f} {where}."
                return ApiError("QUOTA_EXCEEDED", message, 403)
        return None


def _exists(zone: str, name: str) -> ApiError:
    message = f"The resource 'projects/{PROJECT}/zones/{zone}/instances/{name}' already exists"
    return ApiError("RESOURCE_ALREADY_EXISTS", message, 409)
