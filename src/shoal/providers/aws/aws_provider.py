"""The AWS provider: launches EC2 instances idempotently, finds them by tag, and counts them as
terminated only when EC2 says so.

Local state may be lost at any time: the tags on the instances are the cluster's only record.
"""

from __future__ import annotations

import functools
import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from shoal.core.clock import Clock
from shoal.core.concurrency import run_all
from shoal.core.errors import DeniedError, ProviderError, TransientError
from shoal.core.events import Emit
from shoal.core.logs import suppress_and_log
from shoal.core.node_phase import Role
from shoal.providers.aws import (
    cluster_resources,
    ebs,
    ecr,
    instance_types,
    interruption_watch,
    launch_config,
    launch_request,
    tags,
)
from shoal.providers.aws.aws_client import AwsClient, region_of, regions
from shoal.providers.aws.baked_images import BakedImages
from shoal.providers.aws.efs import FileSystems
from shoal.providers.aws.instances import (
    MARKET,
    TYPE,
    change_state,
    list_records,
    observe,
    read_instance,
    request_termination,
    state_of,
    tag_status,
    with_missing,
    with_tags_of,
)
from shoal.providers.aws.launch_config import LaunchConfig
from shoal.providers.aws.launch_request import LaunchResources
from shoal.providers.aws.launcher import Launcher
from shoal.providers.aws.preflight import (
    checks,
    node_config_shapes,
    run_checks,
    setting_checks,
)
from shoal.providers.aws.pricing import PUBLIC_ADDRESS_PER_HOUR, Prices
from shoal.providers.aws.ssh_access import SecurityGroupAccess
from shoal.providers.model import Finding, Instance, LaunchRequest, State
from shoal.providers.protocol import Capabilities, Provider
from shoal.providers.vm import first_boot, ssh_key_checks, ssh_keys, stopped_workers
from shoal.providers.vm.first_ssh_contact import FirstContactRunner
from shoal.providers.vm.launch_fallback import LaunchOutcome, Record
from shoal.providers.vm.launch_options import UnavailableOfferings
from shoal.providers.vm.launch_records import LaunchRecords
from shoal.providers.vm.parallel_launches import launch_in_parallel
from shoal.providers.vm.rival_head import abort_if_older_head
from shoal.providers.vm.ssh_targets import InstanceRunners
from shoal.providers.vm.waiters import (
    TERMINAL_STATES,
    TerminationWatch,
    Waiter,
    poll_intervals,
)
from shoal.remote.known_hosts import HostKeysPerInstance
from shoal.remote.runner import Runner
from shoal.scaling.inputs import Offering
from shoal.spec.cluster_spec import ClusterSpec

_log = logging.getLogger(__name__)

_LISTING_PAUSE_SECONDS = 0.5
_ADDRESS_SECONDS = 120.0
# EC2 reports launch times in whole seconds.
_LAUNCH_TIME_RESOLUTION = 1.1


class AwsProvider(Provider):
    """One cluster's instances in one region of one account, seen from a laptop or, with `on_head`,
    from the cluster's own head. `_head` is EC2's record of the head once a listing has shown it."""

    def __init__(
        self, spec: ClusterSpec, home: Path, clock: Clock, emit: Emit, *, on_head: bool = False
    ) -> None:
        settings = spec.provider.settings
        credentials = settings.get("aws_credentials") or {}
        self._aws = AwsClient(region_of(settings), clock, credentials, from_role=on_head)
        self._clock = clock
        self._emit = emit
        self._on_head = on_head
        self._spec = spec
        region_home = home / "aws" / self._aws.region
        self._home = region_home / tags.resource_name(spec.cluster_name)
        self._launch_records = LaunchRecords(self._home / "launches", clock)
        self._host_keys = HostKeysPerInstance(self._home / "known_hosts")
        self._file_systems = FileSystems(self._aws)
        self._prices = Prices(self._aws, region_home)
        self._launcher = Launcher(
            self._aws,
            self._launch_records,
            UnavailableOfferings(region_home / "refusals.json", clock),
            self._prices,
            emit,
        )
        describe = functools.partial(observe, self._aws)
        self._waiter = Waiter(describe, clock)
        self._assignments = stopped_workers.Assignments()
        self._runners = InstanceRunners(
            spec,
            self._home,
            self._launch_records,
            TerminationWatch(describe, clock),
            clock,
            None if on_head else SecurityGroupAccess(self._aws, spec, emit),
            in_vpc=on_head or launch_config.uses_internal_ips(spec),
        )
        self._images = BakedImages(self._aws, self._runner)
        self._head: Record | None = None

    @functools.cached_property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            # Instances are launched with shutdown behaviour `terminate`.
            on_lease_expired="until sudo -n shutdown -h now || shutdown -h now; do sleep 30; done",
            first_boot_wait=first_boot.wait_command(),
            head_packages=("boto3",),
            boot_timeout_for=lambda i: instance_types.boot_timeout(i.instance_type),
            host_keys=self._host_keys,
            head_spec=self._head_spec,
            stop_or_terminate=self._stop_or_terminate,
            file_system_source=self._file_systems.source,
            price_source=self._price_source,
            registry_login=functools.partial(ecr.login, self._aws),
            interruption_watch_command=interruption_watch.command_for,
            disconnect=self._disconnect,
            tag_status=functools.partial(tag_status, self._aws),
            images=self._images,
            deep_preflight=functools.partial(run_checks.run_checks, self._aws),
        )

    async def preflight(self, spec: ClusterSpec) -> Sequence[Finding]:
        if invalid := node_config_shapes.check_node_configs(spec):
            return [*ssh_key_checks.check_private_key(spec), *invalid]
        findings = checks.check_region(self._aws.region, regions())
        findings += checks.check_persistent_spot(spec)
        # An invalid region has no endpoint to ask for file systems.
        findings = findings or await self._file_systems.look_up(spec)
        settings = setting_checks.check_settings(spec)
        return [*ssh_key_checks.check_private_key(spec), *settings, *findings]

    async def offerings(self, spec: ClusterSpec) -> Sequence[Offering]:
        node_types = sorted(spec.node_types)
        configs = await launch_config.merged_node_configs(self._aws, spec, node_types)
        offerings = await instance_types.offerings(self._aws, self._prices, spec, configs)
        if not self._on_head:  # the controller decides by the prices of instances
            offerings = await launch_config.with_extras(self._aws, self._prices, spec, offerings)
        return offerings

    def _price_source(self, spec: ClusterSpec) -> str:
        configs = [node_type.node_config for node_type in spec.node_types.values()]
        return self._prices.source(
            {(launch_request.instance_type(c), launch_request.market(c)) for c in configs}
        )

    async def list_instances(
        self, cluster: str | None = None, role: Role | None = None
    ) -> Sequence[Instance]:
        """The instances that are not terminated, from a listing that shows all recent launches of
        this machine."""
        is_own = cluster == self._spec.cluster_name
        while True:
            records = await self._list_records(cluster)
            if is_own:
                recent = self._launch_records.recent_instances()
                records = await with_missing(self._aws, records, recent)
            ids = {record["InstanceId"] for record in records}
            tokens = {tags.as_dict(r.get("Tags")).get(tags.TOKEN, "") for r in records}
            if not is_own or self._launch_records.is_complete(ids, tokens):
                break
            _log.debug("the listing of %s does not show all launches yet", cluster)
            await self._clock.sleep(_LISTING_PAUSE_SECONDS)
        self._remember_head(records)
        instances = [self._read(record) for record in records]
        listed = [
            i for i in instances if i.state is not State.TERMINATED and role in (None, i.role)
        ]
        # A caller that looks for the head needs the one that stays.
        return sorted(listed, key=lambda instance: instance.state is State.TERMINATING)

    async def launch(
        self, spec: ClusterSpec, requests: Sequence[LaunchRequest]
    ) -> Sequence[Instance]:
        """Launch all requests in parallel. Returns fewer workers when AWS has no capacity; events
        say why. Without a head there is no cluster, so then everything is terminated."""
        started: list[Instance] = []
        if self._on_head:
            started, requests = await self._start_cached_workers(spec, requests)
        if not requests:
            return started
        node_types = sorted({request.node_type for request in requests})
        configs = await launch_config.resolve_launch_configs(self._aws, spec, node_types)
        checks.refuse_persistent_spot({name: config.config for name, config in configs.items()})
        launch_resources = await self._launch_resources(spec, configs)
        to_launch = await self._images.launch_configs(spec, configs, requests)
        # The head's own key is in no key pair, so its workers get it in their user data.
        authorized_keys = [await ssh_keys.public_key(spec.auth)] if self._on_head else []

        async def launch(request: LaunchRequest) -> LaunchOutcome:
            return await self._launcher.launch(
                spec, request, to_launch[request.token], launch_resources, authorized_keys
            )

        created, errors = await launch_in_parallel(requests, launch)
        if errors:
            _log.warning("terminating %d instances: %s", len(created), errors[0].why)
            await self._terminate_created(created)
            if any(request.role == "head" for request in requests):
                list_instances = functools.partial(self.list_instances, spec.cluster_name)
                await cluster_resources.delete_unused(
                    self._aws, spec.cluster_name, list_instances, self._emit
                )
            raise errors[0]
        return [*started, *await self._wait_for_addresses(created)]

    async def _start_cached_workers(
        self, spec: ClusterSpec, requests: Sequence[LaunchRequest]
    ) -> tuple[list[Instance], list[LaunchRequest]]:
        """Start cached workers; returns them, and the requests for the instances still missing."""
        if not _caches_stopped_nodes(spec):
            return [], list(requests)

        async def start(instances: Sequence[Instance]) -> list[Instance]:
            return (await self._start(spec, instances))[0]

        instances = [*map(self._read, await self._list_records(spec.cluster_name))]
        return await stopped_workers.start_stopped(
            spec, requests, instances, self._assignments, self._launch_records, start
        )

    async def _stop_or_terminate(self, spec: ClusterSpec, instances: Sequence[Instance]) -> None:
        cached = [
            i
            for i in instances
            # EC2 terminates the instance of a one-time spot request instead of stopping it.
            if _caches_stopped_nodes(spec) and i.role == "worker" and i.market != "spot"
        ]
        await self.terminate(spec, [i for i in instances if i not in cached])
        await self.stop(spec, cached)

    async def stop(self, spec: ClusterSpec, instances: Sequence[Instance]) -> Sequence[str]:
        # Stopping the instance of a one-time spot request terminates it: do so explicitly.
        spot = [i for i in instances if i.tags[MARKET] == "spot"]
        ids = [i.id for i in instances if i not in spot]
        if ids:
            _log.info("stopping %s", ", ".join(ids))
            await change_state(self._aws, "stop_instances", ids)
        await self.terminate(spec, spot)
        await self._waiter.until(ids, {State.STOPPED, State.TERMINATED}, "stop")
        self._assignments.release(instances)
        await self._disconnect(instances)
        return await ebs.costs_while_stopped(self._aws, self._prices, ids)

    async def start(self, spec: ClusterSpec, instances: Sequence[Instance]) -> Sequence[Instance]:
        running, failed = await self._start(spec, instances)
        if failed:
            raise ProviderError(
                f"{len(failed)} instances did not start: {', '.join(failed)}",
                why=next(iter(failed.values())),
                fix="retry: shoal up CLUSTER\n"
                "or terminate them to have them replaced: aws ec2 terminate-instances "
                f"--instance-ids {' '.join(failed)}",
            )
        return running

    async def _start(
        self, spec: ClusterSpec, instances: Sequence[Instance]
    ) -> tuple[list[Instance], dict[str, str]]:
        """Start instances; returns those that run, and the reasons of the others by id."""
        ids = [instance.id for instance in instances]
        if not ids:
            return [], {}
        # An instance that is still stopping cannot be started yet.
        await self._waiter.until(ids, set(State) - {State.STOPPING}, "stop")
        _log.info("starting %s", ", ".join(ids))
        await change_state(self._aws, "start_instances", ids)
        failed = await self._waiter.until_running(ids)
        running = [i for i in await self.list_instances(spec.cluster_name) if i.id in ids]
        return [i for i in running if i.id not in failed], failed

    async def terminate(self, spec: ClusterSpec, instances: Sequence[Instance]) -> None:
        ids = [instance.id for instance in instances]
        if not ids:
            return
        _log.info("terminating %s", ", ".join(ids))
        await request_termination(self._aws, ids)
        await self._waiter.until(ids, {State.TERMINATED}, "terminate")
        await self._disconnect(instances)

    async def _disconnect(self, instances: Sequence[Instance]) -> None:
        await run_all(self._runner(instance).disconnect() for instance in instances)

    async def release(self, spec: ClusterSpec) -> Sequence[str]:
        async def terminate_late_instances() -> bool:
            instances = await self.list_instances(spec.cluster_name)
            await self.terminate(spec, instances)
            return bool(instances)

        deleted = await cluster_resources.delete_resources(
            self._aws,
            spec.cluster_name,
            terminate_late_instances,
            self._emit,
            expect_profiles=cluster_resources.creates_profiles(spec),
        )
        with suppress_and_log(_log, "delete snapshots without an AMI", DeniedError):
            deleted += await self._images.store.delete_leftover_snapshots(spec.cluster_name)
        shutil.rmtree(self._home, ignore_errors=True)
        return deleted

    def _head_spec(self, spec: ClusterSpec) -> ClusterSpec:
        # The head has a role instead of credentials, and no environment that sets the region.
        settings = {k: v for k, v in spec.provider.settings.items() if k != "aws_credentials"}
        provider = replace(spec.provider, settings={**settings, "region": self._aws.region})
        return replace(self._file_systems.with_ids(spec), provider=provider)

    def runner(self, spec: ClusterSpec, instance: Instance) -> Runner:
        return self._runner(instance)

    async def _list_records(self, cluster: str | None) -> list[Record]:
        """EC2's records of a cluster's instances, or of every cluster's."""
        return await list_records(self._aws, tags.cluster_filter(cluster))

    async def _launch_resources(
        self, spec: ClusterSpec, configs: Mapping[str, LaunchConfig]
    ) -> LaunchResources:
        """The resources to launch with. A head may create none: its workers use its own."""
        if not self._on_head:
            return await cluster_resources.ensure_resources(self._aws, spec, configs)
        if self._head is None:
            await self.list_instances(spec.cluster_name)
        if self._head is None:
            raise TransientError("head instance not found", why="DescribeInstances returned none")
        return await cluster_resources.resources_of_head(self._aws, spec, self._head)

    def _read(self, record: Record) -> Instance:
        instance = read_instance(record, self._spec.auth.ssh_user)
        price = self._prices.per_hour(instance.tags[TYPE], instance.market, instance.zone)
        volumes = ebs.parse_volumes(instance.tags.get(tags.VOLUMES, ""))
        extras = ebs.hourly_cost(self._prices, volumes)
        if instance.public_address:
            extras += PUBLIC_ADDRESS_PER_HOUR
        return replace(instance, price_per_hour=price, extras_per_hour=extras)

    async def _wait_for_addresses(self, created: Sequence[Record]) -> list[Instance]:
        """The new instances, once EC2 has assigned their addresses and no other `up` of the same
        cluster was earlier."""
        records = {record["InstanceId"]: record for record in created}
        started_at = self._clock.monotonic()
        has_head = any(self._read(record).role == "head" for record in created)
        private_only = launch_config.uses_internal_ips(self._spec)
        for pause in poll_intervals():
            now = self._clock.monotonic()
            listed = await self._list_records(self._spec.cluster_name)
            listed = await with_missing(self._aws, listed, records)
            own, others = [*map(self._read, records.values())], [*map(self._read, listed)]
            await abort_if_older_head(own, others, functools.partial(self.terminate, self._spec))
            for record in listed:
                if (id := record["InstanceId"]) in records:
                    records[id] = with_tags_of(records[id], record)
            # A head launched in the same second may win, and may be missing from an early listing.
            is_decided = not has_head or now >= started_at + _LAUNCH_TIME_RESOLUTION
            is_late = now > started_at + _ADDRESS_SECONDS
            has_all = all(_has_addresses(r, private_only) for r in records.values())
            if is_decided and (has_all or is_late):
                break
            await self._clock.sleep(pause)
        self._remember_head(list(records.values()))
        return [self._read(record) for record in records.values()]

    def _remember_head(self, records: Sequence[Record]) -> None:
        """Remember the head: workers without a public address are reached through it."""
        heads = [
            r
            for r in records
            if self._read(r).role == "head" and state_of(r) not in TERMINAL_STATES
        ]
        if heads:
            self._head = min(heads, key=lambda record: record["LaunchTime"])

    async def _terminate_created(self, created: Sequence[Record]) -> None:
        """Terminate what was just launched. If this fails, `down` finds it by its tags."""
        await self.terminate(self._spec, [self._read(record) for record in created])

    def _runner(self, instance: Instance) -> FirstContactRunner:
        return self._runners.runner(instance, self._read(self._head) if self._head else None)


def _caches_stopped_nodes(spec: ClusterSpec) -> bool:
    """Whether idle workers are stopped instead of terminated; on by default, as in Ray."""
    return bool(spec.provider.settings.get("cache_stopped_nodes", True))


def _has_addresses(record: Record, private_only: bool) -> bool:
    """Whether EC2 has assigned the addresses that are used: a public one is assigned before the
    instance runs."""
    address = record.get("PrivateIpAddress" if private_only else "PublicIpAddress")
    return bool(address) or state_of(record) is not State.PENDING
