"""Machines on EC2: asked for by token, found by tag, and over only when AWS says so.

Whatever is known here can be lost: the tags on the machines are the cluster's only record.
"""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from shoal.core.clock import Clock
from shoal.core.concurrency import run_all
from shoal.core.errors import (
    CapacityError,
    ConfigError,
    ProviderError,
    QuotaError,
    ShoalError,
    TransientError,
)
from shoal.core.events import Emit
from shoal.core.node_phase import Role
from shoal.providers.aws import (
    ebs,
    ecr,
    key_pairs,
    launch_config,
    launch_request,
    offerings_lookup,
    spot_watch_command,
    stopped_workers,
    tags,
)
from shoal.providers.aws.client import AwsClient, regions
from shoal.providers.aws.efs import FileSystems
from shoal.providers.aws.host_keys import FirstContactRunner
from shoal.providers.aws.instances import MARKET, TYPE, read_instance, state_of
from shoal.providers.aws.launch_config import LaunchConfig
from shoal.providers.aws.launch_fallback import LaunchOutcome, Record
from shoal.providers.aws.launch_options import UnavailableOfferings
from shoal.providers.aws.launch_records import Journal
from shoal.providers.aws.launch_request import LaunchResources
from shoal.providers.aws.launcher import Launcher
from shoal.providers.aws.preflight import access, checks, persistent_spot, run_checks
from shoal.providers.aws.pricing import Prices
from shoal.providers.aws.ssh_targets import Doors
from shoal.providers.aws.termination_watch import TERMINAL_STATES, TerminationWatch
from shoal.providers.aws.waiters import Waiter, poll_intervals
from shoal.providers.model import (
    Finding,
    Instance,
    LaunchRequest,
    State,
)
from shoal.providers.protocol import Capabilities, Provider
from shoal.remote.known_hosts import HostKeysPerInstance
from shoal.remote.runner import Runner
from shoal.scaling.inputs import Offering
from shoal.spec.cluster_spec import ClusterSpec

_LAG_PAUSE_SECONDS = 0.5
_ADDRESS_SECONDS = 120.0
# EC2 tells launch times in whole seconds.
_SAME_SECOND = 1.1


class AwsProvider(Provider):
    """One cluster's machines in one region of one account, seen from a laptop or, with
    `on_head`, from among them."""

    def __init__(
        self, spec: ClusterSpec, home: Path, clock: Clock, emit: Emit, *, on_head: bool = False
    ) -> None:
        settings = spec.provider.settings
        credentials = settings.get("aws_credentials") or {}
        self._aws = AwsClient(_region(spec), clock, credentials)
        self._clock = clock
        self._emit = emit
        self._on_head = on_head
        self._spec = spec
        here = home / "aws" / self._aws.region
        self._home = here / tags.name_for(spec.cluster_name)
        self._journal = Journal(self._home / "launches", clock)
        self._host_keys = HostKeysPerInstance(self._home / "known_hosts")
        self._file_systems = FileSystems(self._aws)
        refusals = UnavailableOfferings(here / "refusals.json", clock)
        self._prices = Prices(self._aws, here)
        self._desk = Launcher(self._aws, self._journal, refusals, self._prices, emit)
        listed = functools.partial(self._list, spec.cluster_name)
        fates = TerminationWatch(listed, clock)
        self._vigil = Waiter(listed, clock)
        self._claims = stopped_workers.Claims()
        inside = on_head or bool(settings.get("use_internal_ips"))
        self._doors = Doors(spec, self._home, self._journal, fates, clock, inside=inside)
        self._head: Record | None = None

    @functools.cached_property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            # Instances are launched with shutdown behaviour `terminate`.
            on_lease_expired="until sudo -n shutdown -h now || shutdown -h now; do sleep 30; done",
            head_packages=("boto3",),
            host_keys=self._host_keys,
            head_spec=self._head_spec,
            stop_or_terminate=self._stop_or_terminate,
            file_system_source=self._file_systems.source,
            price_source=self._price_source,
            registry_login=functools.partial(ecr.login, self._aws),
            interruption_watch_command=_interruption_watch_command,
            tag_status=self._tag_status,
            deep_preflight=functools.partial(run_checks.run_checks, self._aws),
        )

    async def preflight(self, spec: ClusterSpec) -> Sequence[Finding]:
        key = access.of_private_key(spec)
        wrong = checks.of_region(self._aws.region, regions())
        wrong += persistent_spot.findings(spec)
        return [*key, *(wrong or await self._file_systems.look_up(spec))]

    async def offerings(self, spec: ClusterSpec) -> Sequence[Offering]:
        return await offerings_lookup.offers(self._aws, self._prices, spec)

    def _price_source(self, spec: ClusterSpec) -> str:
        configs = [node_type.node_config for node_type in spec.node_types.values()]
        return self._prices.source(
            {(launch_request.instance_type(c), launch_request.market(c)) for c in configs}
        )

    async def list_instances(
        self, cluster: str | None = None, role: Role | None = None
    ) -> Sequence[Instance]:
        """The machines that are not over, from a listing that shows all that was launched from
        here lately."""
        while True:
            records = await self._list(cluster)
            ids = {record["InstanceId"] for record in records}
            tokens = {tags.as_dict(r.get("Tags")).get(tags.TOKEN, "") for r in records}
            if cluster is None or self._journal.is_complete(ids, tokens):
                break
            await self._clock.sleep(_LAG_PAUSE_SECONDS)
        self._note_head(records)
        found = [self._read(record) for record in records]
        there = [i for i in found if i.state is not State.TERMINATED and role in (None, i.role)]
        # Who asks for the head means one that will stay.
        return sorted(there, key=lambda instance: instance.state is State.TERMINATING)

    async def launch(
        self, spec: ClusterSpec, requests: Sequence[LaunchRequest]
    ) -> Sequence[Instance]:
        """Ask for all at once. Fewer are returned when AWS has none left; why is in the events.
        Without a head there is no cluster, so then everything is given back."""
        woken, requests = await self._wake(spec, requests) if self._on_head else ([], requests)
        if not requests:
            return woken
        wanted = sorted({one.node_type for one in requests})
        sites = await launch_config.resolve_launch_configs(self._aws, spec, wanted)
        persistent_spot.refuse({name: site.config for name, site in sites.items()})
        ground = await self._ground(spec, sites)
        # A head has no key pair of its own in AWS: its workers are told to let it in.
        lets_in = [await key_pairs.public_half(spec.auth)] if self._on_head else []
        fills: list[LaunchOutcome] = []
        errors: list[ShoalError] = []

        async def place(wish: LaunchRequest) -> None:
            # An error waits until all have their answer: what the others got must be known.
            try:
                result = await self._desk.place(spec, wish, sites[wish.node_type], ground, lets_in)
            except ShoalError as error:
                errors.append(error)
                return
            fills.append(result)
            if result.error is not None:
                errors.append(result.error)
            elif wish.role == "head" and result.refusal is not None and result.missing:
                errors.append(result.refusal)

        await run_all(place(wish) for wish in requests)
        created = [record for one in fills for record in one.records]
        if errors:
            await self._give_back(created)
            raise errors[0]
        return [*woken, *await self._settle(created)]

    async def _wake(
        self, spec: ClusterSpec, launches: Sequence[LaunchRequest]
    ) -> tuple[list[Instance], list[LaunchRequest]]:
        """Switch on what was put aside; what that leaves to be asked for."""
        if not stopped_workers.are_kept(spec):
            return [], list(launches)
        records = await self._list(spec.cluster_name)
        woken: list[Instance] = []
        rest: list[LaunchRequest] = []
        for wish in launches:
            known = self._journal.read(wish.token)
            free = self._claims.free_for(wish.token, records)
            found = stopped_workers.for_wish(spec, wish, free, known.instances if known else ())
            # Written down first: who repeats the wish takes the same ones, and nobody else does.
            self._claims.take(wish.token, found)
            if found:
                self._journal.answered(wish.token, [i.id for i in found])
            running: list[Instance] = []
            try:
                running, _ = await self._switch_on(spec, found)
            except ShoalError as error:
                self._claims.release(found)
                # Another zone may have room for a new one.
                if not isinstance(error, (CapacityError, QuotaError)):
                    raise
            woken += running
            rest.append(replace(wish, count=wish.count - len(running)))
        return woken, [wish for wish in rest if wish.count > 0]

    async def _stop_or_terminate(self, spec: ClusterSpec, instances: Sequence[Instance]) -> None:
        kept = [
            i
            for i in instances
            if stopped_workers.are_kept(spec) and stopped_workers.can_be_kept(i)
        ]
        await self.terminate(spec, [i for i in instances if i not in kept])
        await self.stop(spec, kept)

    async def stop(self, spec: ClusterSpec, instances: Sequence[Instance]) -> Sequence[str]:
        # AWS ends a spot machine that is stopped by a one-time request: end it in the open.
        spot = [i for i in instances if i.tags[MARKET] == "spot"]
        kept = [i.id for i in instances if i not in spot]
        if kept:
            await self._aws.call("ec2", "stop_instances", InstanceIds=kept)
        await self.terminate(spec, spot)
        await self._vigil.reach(kept, {State.STOPPED, State.TERMINATED}, "stop")
        self._claims.release(instances)
        await run_all(self._runner(instance).disconnect() for instance in instances)
        return await ebs.still_cost(self._aws, self._prices, kept)

    async def start(self, spec: ClusterSpec, instances: Sequence[Instance]) -> Sequence[Instance]:
        running, fallen = await self._switch_on(spec, instances)
        if fallen:
            raise ProviderError(
                f"{len(fallen)} machines did not start: {', '.join(fallen)}",
                why=next(iter(fallen.values())),
                fix="shoal up again tries once more, or have others in their place: "
                f"aws ec2 terminate-instances --instance-ids {' '.join(fallen)}",
            )
        return running

    async def _switch_on(
        self, spec: ClusterSpec, instances: Sequence[Instance]
    ) -> tuple[list[Instance], dict[str, str]]:
        """The machines that run now, and why others do not, by id."""
        ids = [instance.id for instance in instances]
        if not ids:
            return [], {}
        # One that is still on its way down cannot turn round; one that is over, AWS refuses.
        await self._vigil.reach(ids, set(State) - {State.STOPPING}, "stop")
        await self._aws.call("ec2", "start_instances", InstanceIds=ids)
        fallen = await self._vigil.run(ids)
        running = [i for i in await self.list_instances(spec.cluster_name) if i.id in ids]
        return [i for i in running if i.id not in fallen], fallen

    async def terminate(self, spec: ClusterSpec, instances: Sequence[Instance]) -> None:
        ids = [instance.id for instance in instances]
        if not ids:
            return
        await self._aws.call(
            # A listing may know an instance that the rest of AWS does not know yet.
            "ec2", "terminate_instances", not_yet=("InvalidInstanceID.NotFound",), InstanceIds=ids,
        )  # fmt: skip
        await self._vigil.reach(ids, {State.TERMINATED}, "end")
        await run_all(self._runner(instance).disconnect() for instance in instances)

    async def release(self, spec: ClusterSpec) -> Sequence[str]:
        async def end_machines() -> bool:
            found = await self.list_instances(spec.cluster_name)
            await self.terminate(spec, found)
            return bool(found)

        made = launch_config.makes_identities(spec)
        removed = await launch_config.release(
            self._aws, spec.cluster_name, end_machines, self._emit, had_identities=made
        )
        shutil.rmtree(self._home, ignore_errors=True)
        return removed

    def _head_spec(self, spec: ClusterSpec) -> ClusterSpec:
        # The head has an identity of its own, and no environment that names the region.
        kept = {k: v for k, v in spec.provider.settings.items() if k != "aws_credentials"}
        settings = {**kept, "region": self._aws.region}
        told = self._file_systems.by_id(spec)
        return replace(told, provider=replace(spec.provider, settings=settings))

    async def _tag_status(self, statuses: Mapping[str, str]) -> None:
        async def one(status: str) -> None:
            ids = sorted(id for id, own in statuses.items() if own == status)
            labels = tags.as_list({tags.RAY_STATUS: status})
            await self._aws.call("ec2", "create_tags", Resources=ids, Tags=labels)

        await run_all(one(status) for status in sorted(set(statuses.values())))

    def runner(self, spec: ClusterSpec, instance: Instance) -> Runner:
        return self._runner(instance)

    async def _list(self, cluster: str | None) -> list[Record]:
        filters = [{"Name": "tag-key", "Values": [tags.CLUSTER]}]
        pages = await self._aws.pages(
            "ec2",
            "describe_instances",
            "Reservations",
            Filters=tags.of_cluster(cluster) if cluster is not None else filters,
        )
        return [record for page in pages for record in page["Instances"]]

    async def _ground(
        self, spec: ClusterSpec, sites: Mapping[str, LaunchConfig]
    ) -> LaunchResources:
        """What new machines stand on. A head may not make any of it: its workers stand on what
        it stands on itself."""
        if not self._on_head:
            return await launch_config.prepare(self._aws, spec, sites)
        if self._head is None:
            await self.list_instances(spec.cluster_name)
        if self._head is None:
            raise TransientError("the head is not among the cluster's machines", why="says AWS")
        groups = tuple(group["GroupId"] for group in self._head["SecurityGroups"])
        profile = launch_config.workers_profile(self._aws, spec)
        return LaunchResources(
            self._head.get("KeyName"), {self._head["VpcId"]: groups}, None, profile
        )

    def _read(self, record: Record) -> Instance:
        found = read_instance(record, self._spec.auth.ssh_user)
        price = self._prices.per_hour(found.tags[TYPE], found.market, found.zone)
        return replace(found, price_per_hour=price)

    async def _settle(self, created: Sequence[Record]) -> list[Instance]:
        """Return the machines once it is known how to reach them, having seen that nobody else
        is bringing up the same cluster."""
        known = {record["InstanceId"]: record for record in created}
        began = self._clock.monotonic()
        has_head = any(self._read(record).role == "head" for record in created)
        for pause in poll_intervals():
            now = self._clock.monotonic()
            listed = await self._list(self._spec.cluster_name)
            await self._yield_to_elder(known, listed)
            known.update({r["InstanceId"]: r for r in listed if r["InstanceId"] in known})
            # A rival of the same second may be the elder one, and too late for an early look.
            looked_late_enough = not has_head or now >= began + _SAME_SECOND
            ready = all(map(_has_addresses, known.values())) or now > began + _ADDRESS_SECONDS
            if ready and looked_late_enough:
                break
            await self._clock.sleep(pause)
        self._note_head(list(known.values()))
        return [self._read(record) for record in known.values()]

    def _note_head(self, records: Sequence[Record]) -> None:
        """Remember the head: workers without an address out here are reached through it."""
        heads = [
            r
            for r in records
            if self._read(r).role == "head" and state_of(r) not in TERMINAL_STATES
        ]
        if heads:
            self._head = min(heads, key=lambda record: record["LaunchTime"])

    async def _yield_to_elder(self, ours: dict[str, Record], listed: Sequence[Record]) -> None:
        """Two people may bring up one cluster in the same moment. Both see both heads, and the
        one who came second gives everything back."""
        heads = [i for i in map(self._read, (*ours.values(), *listed)) if i.role == "head"]
        alive = [i for i in heads if i.state in (State.PENDING, State.RUNNING)]
        if not alive or not any(i.id in ours for i in alive):
            return
        eldest = min(alive, key=lambda i: (i.created_at or 0.0, i.id))
        if eldest.id in ours:
            return
        await self._give_back(list(ours.values()))
        raise TransientError(
            f"someone else is bringing up cluster {self._spec.cluster_name} at this moment",
            why=f"its head is {eldest.id} already; what was launched from here is given back",
            fix="shoal up again, when they are done",
        )

    async def _give_back(self, created: Sequence[Record]) -> None:
        """End what was just launched. When even that fails, `down` will find it by its tags."""
        await self.terminate(self._spec, [self._read(record) for record in created])

    def _runner(self, instance: Instance) -> FirstContactRunner:
        return self._doors.runner(instance, self._read(self._head) if self._head else None)


def _interruption_watch_command(instance: Instance) -> str:
    return spot_watch_command.watch_command() if instance.market == "spot" else ""


def _has_addresses(record: Record) -> bool:
    """Whether AWS has given all the addresses it will give: a public one comes, if at all, before
    the machine runs."""
    return bool(record.get("PublicIpAddress")) or state_of(record) is not State.PENDING


def _region(spec: ClusterSpec) -> str:
    named = (os.environ.get(name) for name in ("AWS_REGION", "AWS_DEFAULT_REGION"))
    given = spec.provider.settings.get("region") or next(filter(None, named), None)
    if not given:
        raise ConfigError(
            "no AWS region is given",
            why="neither provider.region nor AWS_REGION says where the cluster is to be",
            fix="say it in the file: provider: {type: aws, region: us-west-2}",
        )
    return str(given)
