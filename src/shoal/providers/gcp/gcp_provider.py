"""The GCP provider: launches Compute Engine instances idempotently, finds them by label, and counts
them as terminated only when Google says so.

Local state may be lost at any time: the labels and metadata of the instances are the cluster's only
record.
"""

from __future__ import annotations

import functools
import logging
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shoal.catalog import catalog_source
from shoal.core.clock import Clock
from shoal.core.concurrency import run_all
from shoal.core.errors import AuthError, ProviderError, ShoalError, TransientError
from shoal.core.events import Emit
from shoal.core.logs import suppress_and_log
from shoal.core.node_phase import Role
from shoal.providers.gcp import (
    cluster_resources,
    disks,
    host_keys,
    lease,
    machine_types,
    names,
    preemption_watch,
    startup_script,
)
from shoal.providers.gcp.cluster_resources import LaunchResources
from shoal.providers.gcp.gcp_client import GcpClient
from shoal.providers.gcp.instance_reader import InstanceReader
from shoal.providers.gcp.instances import (
    Record,
    list_cluster,
    read_instance,
    state_of,
    tags_of,
)
from shoal.providers.gcp.launch_config import LaunchLocations
from shoal.providers.gcp.launcher import Launcher
from shoal.providers.gcp.preflight import node_config_shapes, run_checks, setting_checks
from shoal.providers.gcp.project_settings import (
    caches_stopped_nodes,
    project_of,
    uses_internal_ips,
)
from shoal.providers.gcp.ssh_access import FirewallAccess
from shoal.providers.model import Finding, Instance, LaunchRequest, State
from shoal.providers.protocol import Capabilities, Provider
from shoal.providers.vm import first_boot, ssh_key_checks, ssh_keys, stopped_workers, tags
from shoal.providers.vm.first_ssh_contact import FirstContactRunner
from shoal.providers.vm.launch_fallback import LaunchOutcome
from shoal.providers.vm.launch_options import UnavailableOfferings
from shoal.providers.vm.launch_records import LaunchRecords
from shoal.providers.vm.parallel_launches import launch_in_parallel
from shoal.providers.vm.rival_head import abort_if_older_head
from shoal.providers.vm.ssh_targets import InstanceRunners
from shoal.providers.vm.waiters import TERMINAL_STATES, TerminationWatch
from shoal.remote.known_hosts import HostKeysPerInstance
from shoal.remote.runner import Runner
from shoal.scaling.inputs import Offering
from shoal.spec.cluster_spec import ClusterSpec

_log = logging.getLogger(__name__)

_LISTING_PAUSE_SECONDS = 0.5
_NOT_FOUND = ("notFound",)


class GcpProvider(Provider):
    """One cluster's instances in one project, seen from a laptop or, with `on_head`, from the
    cluster's own head. `_head` is Google's record of the head once a listing has shown it."""

    def __init__(
        self, spec: ClusterSpec, home: Path, clock: Clock, emit: Emit, *, on_head: bool = False
    ) -> None:
        settings = spec.provider.settings
        project = project_of(settings)
        self._gcp = GcpClient(
            project, clock, credentials=settings.get("gcp_credentials"), on_head=on_head
        )
        self._locations = LaunchLocations(self._gcp, settings)
        self._reader = InstanceReader(self._gcp, spec.cluster_name, self._locations)
        self._clock = clock
        self._emit = emit
        self._on_head = on_head
        self._spec = spec
        project_home = home / "gcp" / project
        self._home = project_home / names.cluster_prefix(spec.cluster_name)
        self._launch_records = LaunchRecords(self._home / "launches", clock)
        self._host_keys = HostKeysPerInstance(self._home / "known_hosts")
        self._launcher = Launcher(
            self._gcp,
            self._launch_records,
            UnavailableOfferings(project_home / "refusals.json", clock),
            emit,
        )
        self._assignments = stopped_workers.Assignments()
        self._runners = InstanceRunners(
            spec,
            self._home,
            self._launch_records,
            TerminationWatch(self._reader.observe, clock),
            clock,
            None if on_head else FirewallAccess(self._gcp, spec, emit),
            in_vpc=on_head or uses_internal_ips(spec),
            pin_host_key=functools.partial(host_keys.pin_published_keys, self._gcp),
        )
        self._head: Record | None = None

    @functools.cached_property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            on_lease_expired=lease.delete_command(),
            first_boot_wait=first_boot.wait_command(),
            head_packages=("google-auth", "requests"),
            host_keys=self._host_keys,
            head_spec=self._head_spec,
            stop_or_terminate=self._stop_or_terminate,
            interruption_watch_command=preemption_watch.command_for,
            disconnect=self._disconnect,
            tag_status=self._reader.label_statuses,
            price_source=catalog_source,
            deep_preflight=functools.partial(run_checks.run_checks, self._gcp, self._locations),
        )

    async def preflight(self, spec: ClusterSpec) -> Sequence[Finding]:
        return [
            *ssh_key_checks.check_private_key(spec),
            *setting_checks.check_settings(spec),
            *node_config_shapes.check_node_configs(spec),
        ]

    async def offerings(self, spec: ClusterSpec) -> Sequence[Offering]:
        return await machine_types.offerings(self._gcp, self._locations, spec)

    async def list_instances(
        self, cluster: str | None = None, role: Role | None = None
    ) -> Sequence[Instance]:
        """The instances that are not deleted, from a listing that shows all recent launches of this
        machine."""
        while True:
            records = await list_cluster(self._gcp, cluster)
            if cluster != self._spec.cluster_name:
                break
            listed = {str(record["name"]) for record in records}
            unlisted = self._launch_records.recent_instances() - listed
            records += await self._reader.read_unlisted(sorted(unlisted))
            tokens = {tags_of(r).get(tags.TOKEN, "") for r in records}
            # What can be read neither in the listing nor by its name is deleted.
            if self._launch_records.is_complete(listed | unlisted, tokens):
                break
            _log.debug("the listing of %s does not show all launches yet", cluster)
            await self._clock.sleep(_LISTING_PAUSE_SECONDS)
        self._remember(records)
        found = [i for i in map(self._read, records) if role in (None, i.role)]
        # A caller that looks for the head needs the one that stays.
        return sorted(found, key=lambda instance: instance.state is State.TERMINATING)

    async def launch(
        self, spec: ClusterSpec, requests: Sequence[LaunchRequest]
    ) -> Sequence[Instance]:
        """Launch all requests in parallel. Returns fewer workers when Google has no capacity;
        events say why. Without a head there is no cluster, so then everything is deleted."""
        started: list[Instance] = []
        if self._on_head:
            started, requests = await self._start_cached_workers(spec, requests)
        if not requests:
            return started
        node_types = sorted({request.node_type for request in requests})
        configs = {
            name: await self._locations.merged_config(spec.node_types[name].node_config)
            for name in node_types
        }
        resources = await self._launch_resources(spec, configs)
        metadata = await self._metadata(spec)
        subnets = {
            name: await self._locations.subnets(config, self._head if self._on_head else None)
            for name, config in configs.items()
        }

        async def launch(request: LaunchRequest) -> LaunchOutcome:
            return await self._launcher.launch(
                spec,
                request,
                configs[request.node_type],
                subnets[request.node_type],
                metadata,
                resources.service_accounts.get(request.role, ""),
            )

        created, errors = await launch_in_parallel(requests, launch)
        self._remember(created)
        if errors:
            _log.warning("deleting %d instances: %s", len(created), errors[0].why)
            await self._terminate_created(created)
            if any(request.role == "head" for request in requests):
                await self._delete_unused_resources(spec.cluster_name)
            raise errors[0]
        await self._abort_if_older_head(created)
        records = await self._reader.with_addresses(created)
        self._remember(records)
        return [*started, *map(self._read, records)]

    async def _launch_resources(
        self, spec: ClusterSpec, configs: Mapping[str, Mapping[str, Any]]
    ) -> LaunchResources:
        """The resources to launch with. A head may create none: its workers use its network."""
        if not self._on_head:
            return await cluster_resources.ensure_resources(
                self._gcp, spec, self._locations, configs
            )
        if self._head is None:
            await self.list_instances(spec.cluster_name)
        if self._head is None:
            raise TransientError("head instance not found", why="the listing does not show it")
        return cluster_resources.resources_of_head(spec, self._head, self._gcp.project)

    async def _metadata(self, spec: ClusterSpec) -> dict[str, str]:
        """The metadata of new instances: who may log in, and what runs at boot. Workers that a head
        launches accept its key, and those that it accepts itself."""
        own_key = f"{spec.auth.ssh_user}:{(await ssh_keys.public_key(spec.auth)).strip()}"
        authorized = [own_key]
        if self._on_head and self._head is not None:
            known = names.metadata_values(self._head["metadata"].get("items"))
            authorized = [*known.get("ssh-keys", "").splitlines(), own_key]
        return {
            "ssh-keys": "\n".join(dict.fromkeys(authorized)),
            "block-project-ssh-keys": "TRUE",
            "enable-oslogin": "FALSE",
            **host_keys.METADATA,
            **startup_script.metadata(spec),
        }

    async def _start_cached_workers(
        self, spec: ClusterSpec, requests: Sequence[LaunchRequest]
    ) -> tuple[list[Instance], list[LaunchRequest]]:
        """Start cached workers; returns them, and the requests for the instances still missing."""
        if not caches_stopped_nodes(spec):
            return [], list(requests)

        async def start(workers: Sequence[Instance]) -> list[Instance]:
            return (await self._start(spec, workers))[0]

        return await stopped_workers.start_stopped(
            spec,
            requests,
            await self.list_instances(spec.cluster_name),
            self._assignments,
            self._launch_records,
            start,
        )

    async def _stop_or_terminate(self, spec: ClusterSpec, workers: Sequence[Instance]) -> None:
        if caches_stopped_nodes(spec):
            await self.stop(spec, workers)
        else:
            await self.terminate(spec, workers)

    async def stop(self, spec: ClusterSpec, instances: Sequence[Instance]) -> Sequence[str]:
        if instances:
            _log.info("stopping %s", ", ".join(i.id for i in instances))
        refused = await self._for_each(instances, self._stop)
        for error in refused.values():
            if isinstance(error, (TransientError, AuthError)):
                raise error
        unstoppable = [i for i in instances if i.id in refused]
        for instance in unstoppable:
            _log.warning("deleting %s: %s", instance.id, refused[instance.id].why)
        await self.terminate(spec, unstoppable)
        self._assignments.release(instances)
        await self._disconnect(instances)
        stopped = [i for i in instances if i.id not in refused]
        return disks.costs_while_stopped(
            await run_all(self._reader.get(i.zone, i.id) for i in stopped)
        )

    async def _stop(self, instance: Instance) -> None:
        await self._gcp.perform("POST", f"{_path(instance)}/stop", ignore_codes=_NOT_FOUND)

    async def start(self, spec: ClusterSpec, instances: Sequence[Instance]) -> Sequence[Instance]:
        running, failed = await self._start(spec, instances)
        if failed:
            first = next(iter(failed.values()))
            zone = next(i.zone for i in instances if i.id in failed)
            raise ProviderError(
                f"{len(failed)} instances did not start: {', '.join(failed)}",
                why=first.why,
                fix="retry: shoal up CLUSTER\n"
                "or delete them to have them replaced: gcloud compute instances delete "
                f"{' '.join(failed)} --zone {zone} --project {self._gcp.project}",
            )
        return running

    async def _start(
        self, spec: ClusterSpec, instances: Sequence[Instance]
    ) -> tuple[list[Instance], dict[str, ShoalError]]:
        """Start instances; returns those that run, and the errors of the others by id."""
        if not instances:
            return [], {}
        _log.info("starting %s", ", ".join(i.id for i in instances))

        async def start(instance: Instance) -> None:
            await self._gcp.perform("POST", f"{_path(instance)}/start")

        failed = await self._for_each(instances, start)
        ids = {i.id for i in instances if i.id not in failed}
        return [i for i in await self.list_instances(spec.cluster_name) if i.id in ids], failed

    async def terminate(self, spec: ClusterSpec, instances: Sequence[Instance]) -> None:
        if not instances:
            return
        _log.info("deleting %s", ", ".join(i.id for i in instances))

        async def delete(instance: Instance) -> None:
            await self._gcp.perform("DELETE", _path(instance), ignore_codes=_NOT_FOUND)
            # A later instance of the same name has other host keys.
            (self._home / "known_hosts" / instance.id).unlink(missing_ok=True)

        failed = await self._for_each(instances, delete)
        await self._disconnect(instances)
        if failed:
            raise next(iter(failed.values()))

    async def _for_each(
        self, instances: Sequence[Instance], act: Callable[[Instance], Awaitable[None]]
    ) -> dict[str, ShoalError]:
        """Act on all instances, also when some fail; returns the errors by id."""
        failed: dict[str, ShoalError] = {}

        async def attempt(instance: Instance) -> None:
            try:
                await act(instance)
            except ShoalError as error:
                failed[instance.id] = error

        await run_all(map(attempt, instances))
        return failed

    async def _disconnect(self, instances: Sequence[Instance]) -> None:
        await run_all(self._runner(instance).disconnect() for instance in instances)

    async def release(self, spec: ClusterSpec) -> Sequence[str]:
        # An up that was killed may have launched instances that the first listing did not show.
        while late := await self.list_instances(spec.cluster_name):
            await self.terminate(spec, late)
        deleted = await cluster_resources.delete_resources(self._gcp, spec.cluster_name)
        shutil.rmtree(self._home, ignore_errors=True)
        return deleted

    async def _delete_unused_resources(self, cluster: str) -> None:
        """Delete what was created for a cluster that could not be launched, unless another command
        has launched instances meanwhile."""
        with suppress_and_log(_log, f"delete the resources of {cluster}", ShoalError):
            if not await self.list_instances(cluster):
                await cluster_resources.delete_resources(self._gcp, cluster)

    def _head_spec(self, spec: ClusterSpec) -> ClusterSpec:
        # The head has a service account instead of credentials, and no environment that sets the
        # project.
        settings = {k: v for k, v in spec.provider.settings.items() if k != "gcp_credentials"}
        known = {"project_id": self._gcp.project, "region": self._locations.region}
        return replace(spec, provider=replace(spec.provider, settings={**settings, **known}))

    def runner(self, spec: ClusterSpec, instance: Instance) -> Runner:
        return self._runner(instance)

    def _runner(self, instance: Instance) -> FirstContactRunner:
        return self._runners.runner(instance, self._read(self._head) if self._head else None)

    def _read(self, record: Record) -> Instance:
        instance = read_instance(record, self._spec.auth.ssh_user)
        price = machine_types.price_per_hour(record, instance.zone.rpartition("-")[0])
        return replace(instance, price_per_hour=price)

    def _remember(self, records: Sequence[Record]) -> None:
        """Remember where instances are, and the head: workers without a public address are reached
        through it."""
        self._reader.remember(records)
        heads = [
            r
            for r in records
            if self._read(r).cluster == self._spec.cluster_name
            and self._read(r).role == "head"
            and state_of(r) not in TERMINAL_STATES
        ]
        if heads:
            self._head = min(heads, key=lambda record: str(record["creationTimestamp"]))

    async def _abort_if_older_head(self, created: Sequence[Record]) -> None:
        own = [self._read(record) for record in created]
        if any(instance.role == "head" for instance in own):
            listed = [*map(self._read, await list_cluster(self._gcp, self._spec.cluster_name))]
            await abort_if_older_head(own, listed, functools.partial(self.terminate, self._spec))

    async def _terminate_created(self, created: Sequence[Record]) -> None:
        """Delete what was just launched. If this fails, `down` finds it by its labels."""
        await self.terminate(self._spec, [self._read(record) for record in created])


def _path(instance: Instance) -> str:
    return f"zones/{instance.zone}/instances/{instance.id}"
