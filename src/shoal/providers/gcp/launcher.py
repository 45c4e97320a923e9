"""One launch: the head by insert and workers by bulkInsert, with fallback over zones, types and
markets.

Google may create any part of what bulkInsert names, and a repeated call may answer for an earlier
one. So after every call a listing says which instances exist; the reply never does.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shoal.core.concurrency import run_all
from shoal.core.errors import CapacityError, ShoalError
from shoal.core.events import Emit
from shoal.providers.gcp import error_codes, launch_request, lease, machine_types, names
from shoal.providers.gcp.gcp_client import GcpClient
from shoal.providers.gcp.instances import Record, list_records, state_of, zone_of
from shoal.providers.gcp.project_settings import uses_internal_ips
from shoal.providers.model import LaunchRequest, State
from shoal.providers.vm import tags
from shoal.providers.vm.launch_fallback import LaunchOutcome, launch_with_fallback
from shoal.providers.vm.launch_options import (
    LaunchOption,
    Subnet,
    UnavailableOfferings,
    launch_options,
    order_zones,
)
from shoal.providers.vm.launch_records import LaunchRecords
from shoal.spec.cluster_spec import ClusterSpec
from shoal.spec.hashes import launch_hash

_log = logging.getLogger(__name__)

_EXISTS = ("alreadyExists",)
_NOT_FOUND = ("notFound",)
# What Google says of a service account that was created a moment ago.
_NOT_PROPAGATED = ("serviceAccounts/",)


@dataclass(frozen=True)
class Launcher:
    """Launches instances in one project, with the state that this machine keeps."""

    gcp: GcpClient
    records: LaunchRecords
    unavailable: UnavailableOfferings
    emit: Emit

    async def launch(
        self,
        spec: ClusterSpec,
        launch: LaunchRequest,
        config: Mapping[str, Any],
        subnets: Sequence[Subnet],
        metadata: Mapping[str, str],
        service_account: str = "",
    ) -> LaunchOutcome:
        """Launch the instances of one request, with this `node_config`. `metadata` is Shoal's own,
        such as SSH keys."""
        instance_tags = names.instance_tags(
            spec.cluster_name,
            launch.node_type,
            launch.role,
            launch.token,
            launch_hash(spec, launch.node_type),
        )
        # A launch that was interrupted may have created instances, in whichever zone.
        is_repeated = self.records.read(launch.token) is not None
        earlier = await self._launched_with(launch.token) if is_repeated else []
        created = [str(record["name"]) for record in earlier]

        async def create(option: LaunchOption, count: int) -> Sequence[Record]:
            properties = launch_request.properties(
                config,
                option,
                cluster=spec.cluster_name,
                tags=instance_tags,
                metadata=metadata,
                service_account=service_account,
                own_labels=spec.shoal.tags,
                internal_only=uses_internal_ips(spec),
                limits=lease.scheduling(spec),
            )
            all_names = names.instance_names(
                spec.cluster_name, launch.token, launch.role, launch.count
            )
            wanted = [name for name in all_names if name not in created][:count]
            made, error = await self._create(launch, option, properties, wanted, config)
            new = await self._created(launch.token, option, wanted, made)
            created.extend(str(r["name"]) for r in new)
            self.records.record_instances(launch.token, [str(r["name"]) for r in new])
            if not new:
                raise error or CapacityError(
                    f"Google created none of {count} instances",
                    why=f"{option} has no capacity",
                )
            if error is not None:
                _log.info("created %d of %d as %s: %s", len(new), count, option, error.why)
            return new

        options = launch_options(
            [launch_request.machine_type(config), *spec.shoal.fallback.get(launch.node_type, ())],
            launch.market or launch_request.market(config),
            subnets,
            on_demand_fallback=spec.shoal.on_demand_fallback,
        )

        def price(option: LaunchOption) -> float | None:
            scheduling = {"provisioningModel": "SPOT"} if option.market == "spot" else {}
            as_launched = {
                **config,
                "machineType": option.instance_type,
                "scheduling": scheduling,
            }
            region = option.subnet.zone.rpartition("-")[0]
            return machine_types.price_per_hour(as_launched, region)

        self.records.record_intent(launch.token, "")
        outcome = await launch_with_fallback(
            replace(launch, count=max(0, launch.count - len(earlier))),
            order_zones(options, launch.zone, lambda option: 0.0),
            create,
            self.unavailable,
            self.emit,
            price,
            is_final=error_codes.is_global_quota,
        )
        outcome = replace(outcome, launch=launch, records=[*earlier, *outcome.records])
        if not outcome.records and outcome.error is None:
            self.records.delete(launch.token)
        return outcome

    async def _launched_with(self, token: str) -> list[Record]:
        """The instances that exist from an earlier call with this token."""
        label = f"labels.{tags.TOKEN} = {names.label_value(token)}"
        records = await list_records(self.gcp, label)
        return [r for r in records if state_of(r) in (State.PENDING, State.RUNNING)]

    async def _created(
        self, token: str, option: LaunchOption, wanted: Sequence[str], made: int
    ) -> list[Record]:
        """The records of the wanted instances that exist. A listing may be too old to show all that
        Google says it `made`; a read by name never is."""
        label = f"labels.{tags.TOKEN} = {names.label_value(token)}"
        zone = option.subnet.zone
        listed = await list_records(self.gcp, label)
        found = {str(r["name"]): r for r in listed if r["name"] in wanted and zone_of(r) == zone}
        if len(found) < made:
            missing = [name for name in wanted if name not in found]
            read = await run_all(
                self.gcp.compute("GET", f"zones/{zone}/instances/{name}", ignore_codes=_NOT_FOUND)
                for name in missing
            )
            found.update({str(record["name"]): record for record in read if record})
        return list(found.values())

    async def _create(
        self,
        launch: LaunchRequest,
        option: LaunchOption,
        properties: Mapping[str, Any],
        wanted: Sequence[str],
        config: Mapping[str, Any],
    ) -> tuple[int, ShoalError | None]:
        """Create instances; returns how many Google says it made, and the error of the operation,
        which may have made some."""
        zone = option.subnet.zone
        path = f"zones/{zone}/instances"

        async def insert(name: str) -> tuple[int, ShoalError | None]:
            body = launch_request.insert_request(properties, name, zone)
            return await self._perform(path, body, launch.token, str(option), name)

        if launch.role == "worker" and not launch_request.needs_single_insert(config):
            body = launch_request.bulk_request(properties, wanted)
            return await self._perform(
                f"{path}/bulkInsert", body, launch.token, str(option), *wanted
            )
        results = await run_all(insert(name) for name in wanted)
        errors = [error for _, error in results if error is not None]
        return sum(made for made, _ in results), errors[0] if errors else None

    async def _perform(
        self, path: str, body: Mapping[str, Any], token: str, *parts: str
    ) -> tuple[int, ShoalError | None]:
        """A call that launches; an instance that exists already is an earlier call's."""
        operation = await self.gcp.compute(
            "POST",
            path,
            body,
            ignore_codes=_EXISTS,
            retry_codes=_NOT_PROPAGATED,
            query={"requestId": names.request_id(token, *parts)},
        )
        if not operation:
            return 1, None
        done = await self.gcp.finish(operation)
        error = error_codes.operation_error(done)
        bulk = (done.get("instancesBulkInsertOperationMetadata") or {}).get("perLocationStatus")
        if bulk is None:
            return (0 if error else 1), error
        return sum(int(status.get("createdVmCount") or 0) for status in bulk.values()), error
