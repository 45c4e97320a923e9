"""The handle of one cluster: its spec and its provider joined, and what both together can do.
Used by operations on the laptop and by the controller on the head. Decides nothing."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from shoal.bootstrap.node_ray_start import ray_start_for
from shoal.bootstrap.node_runner import node_runner
from shoal.cluster import shutdown_note
from shoal.cluster.git_refs import with_ref_files
from shoal.core.clock import Clock
from shoal.core.concurrency import run_all
from shoal.core.errors import ClaimedError, ConfigError, NotFoundError, ShoalError
from shoal.core.logs import suppress_and_log
from shoal.core.node_phase import Role
from shoal.providers import provider_for
from shoal.providers.model import Finding, Instance, LaunchRequest, State, head_of
from shoal.providers.protocol import Capabilities, Provider
from shoal.ray_runtime.ray_start import RayStart
from shoal.remote.runner import Runner, capture
from shoal.spec.cluster_spec import ClusterSpec, FilesSpec
from shoal.spec.durations import duration_text

# The imports below are slow, and only commands that change a cluster need them.
if TYPE_CHECKING:
    from shoal.bootstrap.existing_hosts import ExistingHosts
    from shoal.bootstrap.node_plan import Mode, NodePlan, NodePlanner
    from shoal.bootstrap.node_probe import NodeProbe
    from shoal.cluster.observed_cluster import ObservedCluster
    from shoal.core.events import Emit
    from shoal.ray_runtime.nodes import RayNode

_log = logging.getLogger(__name__)

RunEnv = Literal["auto", "host", "docker"]

_VERSION_SECONDS = 10.0


class LocalEnvironment(Protocol):
    """This machine as a handle needs it: the directory for local state, a clock, and where events
    go."""

    @property
    def home(self) -> Path: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def emit(self) -> Emit: ...


class ClusterHandle:
    """One cluster. It holds no state of the cluster: every method asks the provider or the nodes.

    `force` lets bootstrap claim hosts of other clusters. `files_digest` covers the content of the
    file mounts; None means that the files are on this machine. `shutdown` is when and why the
    cluster shut itself down, if that is known.
    """

    def __init__(
        self,
        provider: Provider,
        spec: ClusterSpec,
        *,
        force: bool = False,
        files_digest: str | None = None,
        shutdown: str = "",
    ) -> None:
        self.provider = provider
        self._shutdown = shutdown
        self.spec = spec
        self._force = force
        self._files_digest = files_digest

    @classmethod
    def of(
        cls, environment: LocalEnvironment, spec: ClusterSpec, *, force: bool = False
    ) -> ClusterHandle:
        """The handle of the cluster that a spec describes, as seen from this machine."""
        home, clock = environment.home, environment.clock
        spec = with_ref_files(spec, home)
        shutdown = shutdown_note.read(home, spec.cluster_name, clock.now())
        provider = provider_for(spec, home, clock, environment.emit)
        return cls(provider, spec, force=force, shutdown=shutdown)

    @property
    def name(self) -> str:
        return self.spec.cluster_name

    @property
    def shutdown(self) -> str:
        """When and why the cluster shut itself down; empty if it did not, as far as is known."""
        return self._shutdown

    @property
    def capabilities(self) -> Capabilities:
        """What the cluster's provider can do."""
        return self.provider.capabilities

    @cached_property
    def files(self) -> FilesSpec:
        """The files that bootstrap sends."""
        from shoal.bootstrap.node_plan import files_for

        return files_for(self.spec, self.capabilities)

    @cached_property
    def planner(self) -> NodePlanner:
        """Makes the node plans of this cluster."""
        from shoal.bootstrap.mount_files import files_hash
        from shoal.bootstrap.node_plan import NodePlanner

        digest = files_hash(self.files) if self._files_digest is None else self._files_digest
        return NodePlanner(self.spec, self.provider, digest, force=self._force)

    @cached_property
    def existing_hosts(self) -> ExistingHosts | None:
        """The hosts that exist before and after the cluster; None if the provider launches its
        instances."""
        from shoal.bootstrap.existing_hosts import ExistingHosts

        hosts, head = self.capabilities.hosts, self.capabilities.fixed_head
        existing = hosts() if hosts is not None else [head] if head is not None else None
        return None if existing is None else ExistingHosts(self.spec, self.provider, existing)

    def check_files(self) -> list[Finding]:
        """File mounts whose source does not exist, and settings for files that have no effect."""
        findings = [
            Finding(
                "error",
                f"file_mounts: {source} does not exist",
                why=f"it is the source of {target} on every node",
                fix=f"remove {target}, or correct the path",
                at=("files", "mounts", target),
            )
            for target, source in self.files.mounts.items()
            if not Path(source).exists()
        ]
        if self.files.sync_continuously:
            findings.append(
                Finding(
                    "warning",
                    "file_mounts_sync_continuously has no effect",
                    why="files are sent only by commands",
                    fix="send what has changed: shoal up CLUSTER",
                )
            )
        return findings

    async def instances(self, role: Role | None = None) -> Sequence[Instance]:
        """The cluster's instances, as the provider lists them now."""
        return await self.provider.list_instances(self.name, role)

    async def head(self) -> Instance:
        """The head. Raises `NotFoundError` if the cluster has none."""
        head = head_of(await self.instances("head"))
        if head is None:
            raise self._not_up("it has no head")
        return head

    def _not_up(self, why: str) -> NotFoundError:
        if self._shutdown:
            why = self._shutdown
        elif autostop := self.spec.shoal.autostop:
            why += f"; autostop ends it after {duration_text(autostop)} without use"
        return NotFoundError(f"cluster {self.name} is not up", why=why, fix="shoal up CLUSTER")

    async def instance_named(self, node: str) -> Instance:
        """The instance with this name or address."""
        instances = await self.instances()
        for instance in instances:
            if node in (instance.name, instance.address, instance.public_address):
                return instance
        known = ", ".join(f"{i.name} ({i.public_address or i.address})" for i in instances)
        raise NotFoundError(f"cluster {self.name} has no node {node}", why=f"it has {known}")

    async def head_address(self) -> str:
        """The head's address, the public one if it has one."""
        return _address(await self.head())

    async def worker_addresses(self) -> list[str]:
        """The workers' addresses, public ones where there are. Raises `NotFoundError` if the
        cluster is not up."""
        instances = await self.instances()
        if not instances:
            raise self._not_up("it has no instances")
        return [_address(i) for i in instances if i.role == "worker"]

    def fixed_head(self, run_env: RunEnv) -> tuple[Instance, str] | None:
        """The head where it must be if the cluster is up, and a command that fails on it if it is
        not this cluster's; None if only a listing can tell."""
        head = self.capabilities.fixed_head
        claim = self.capabilities.claim_of(head) if head is not None else None
        in_container = self.spec.head_setup.container is not None and run_env != "host"
        if in_container or head is None or claim is None:
            return None
        from shoal.bootstrap import claims

        return head, claims.check_command(claim.owner)

    def runner(self, instance: Instance) -> Runner:
        """Runs commands on an instance itself."""
        return self.provider.runner(self.spec, instance)

    def node_runner(self, instance: Instance, run_env: RunEnv = "auto") -> Runner:
        """Runs commands in the node's container if it has one, else on the instance."""
        if run_env == "host":
            return self.runner(instance)
        return node_runner(self.provider, self.spec, instance)

    def ray_start(self, instance: Instance, head: Instance) -> RayStart:
        """How Ray starts on an instance of the cluster that `head` leads."""
        return ray_start_for(self.capabilities, self.spec, instance, head)

    def node_plan(
        self,
        instance: Instance,
        head: Instance,
        mode: Mode = "full",
        *,
        stops_ray: bool = False,
    ) -> NodePlan:
        """What bootstrap must do on one node."""
        return self.planner.plan(instance, head, mode, stops_ray=stops_ray)

    async def launch(self, requests: Sequence[LaunchRequest]) -> Sequence[Instance]:
        """Launch instances, from baked images where there are."""
        return await self.provider.launch(
            self.spec,
            [replace(r, setup_hash=self.planner.setup_hash(r.node_type, r.role)) for r in requests],
        )

    @property
    def setup_hashes(self) -> dict[tuple[str, Role], str]:
        """The setup hash of the head and of each type of workers; empty for those of which no
        images are baked."""
        workers = [name for name, t in self.spec.node_types.items() if t.max_workers]
        kinds: list[tuple[str, Role]] = [
            (self.spec.head_node_type, "head"),
            *((name, "worker") for name in workers),
        ]
        return {kind: self.planner.setup_hash(*kind) for kind in kinds}

    async def observe(self, instances: Sequence[Instance] | None = None) -> ObservedCluster:
        """Probe all instances in parallel. `instances` is the provider's listing, if the caller
        has it already."""
        from shoal.cluster.observed_cluster import ObservedCluster

        if instances is None:
            instances = await self.instances()
        head = head_of(instances)
        known_type = [i for i in instances if i.node_type in self.spec.node_types]
        plans = {i.id: self.node_plan(i, head or i) for i in known_type}
        running = [i for i in known_type if i.state is State.RUNNING]
        probes = await run_all(self._try_probe(i) for i in running)
        return ObservedCluster(
            instances=instances,
            probes={i.id: probe for i, probe in zip(running, probes, strict=True) if probe},
            desired_states={id: plan.desired_state for id, plan in plans.items()},
            uses_existing_hosts=self.capabilities.hosts is not None,
            controller_launches_workers=self.capabilities.controller_launches_workers,
            free_hosts=self._free_hosts(instances),
            unusable_hosts=self.unusable_hosts(),
        )

    def unusable_hosts(self) -> dict[str, ShoalError]:
        """By instance id, the hosts that the last listing found and that the cluster cannot use."""
        unusable = self.capabilities.unusable_hosts
        errors = unusable() if unusable is not None else {}
        return {
            id: error
            for id, error in errors.items()
            if not (self._force and isinstance(error, ClaimedError))
        }

    def _free_hosts(self, instances: Sequence[Instance]) -> list[Instance]:
        """The existing hosts that `launch` may pick for workers. One that does not answer may do so
        by then."""
        hosts = self.capabilities.hosts
        taken = {i.id for i in instances if i.state is State.RUNNING} | self.unusable_hosts().keys()
        every = hosts() if hosts is not None else ()
        return [host for host in every if host.role == "worker" and host.id not in taken]

    async def probe(self, instance: Instance) -> NodeProbe:
        """A node's state, read on the node in one round trip."""
        from shoal.bootstrap import node_probe

        container = self.spec.container_for(instance.node_type, instance.role)
        mount_points = self.spec.mount_points_for(instance.node_type)
        return await node_probe.probe(self.runner(instance), instance, container, mount_points)

    async def _try_probe(self, instance: Instance) -> NodeProbe | None:
        """A node's state; None if it does not answer, which a busy node may not."""
        try:
            return await self.probe(instance)
        except ShoalError as error:
            _log.info("could not probe %s: %s", instance.name, error)
            return None

    async def ray_version(self, instance: Instance, head: Instance) -> str:
        """The version of Ray on a node; empty if it cannot be read."""
        from shoal.ray_runtime.nodes import ray_version_command

        start = self.ray_start(instance, head)
        command = start.with_python(ray_version_command(start.python))
        try:
            _, lines = await capture(self.node_runner(instance), command, timeout=_VERSION_SECONDS)
        except (ShoalError, TimeoutError) as error:
            _log.info("could not read the Ray version of %s: %s", instance.name, error)
            return ""
        return lines[-1] if lines else ""

    async def list_nodes(self, head: Instance) -> dict[str, RayNode]:
        """The nodes that Ray reports as alive, by instance id. Raises `ShoalError` if Ray cannot be
        asked: `NotFoundError` if no Ray ever ran on the head."""
        from shoal.bootstrap import agents
        from shoal.ray_runtime.nodes import list_nodes, list_nodes_command

        start = self.ray_start(head, head)
        command = list_nodes_command(start.python, start.gcs_address)
        if self.spec.shoal.controller and not self.capabilities.shares_this_machine:
            # The controller answers at once; another process would have to import Ray first.
            ask = agents.request_nodes_command(start.gcs_address)
            command = f"{{ [ {start.python} != false ] && {ask} </dev/null; }} || {command}"
        command = start.with_running(command)
        return await list_nodes(self.node_runner(head), command, start.driver_env())

    async def stop_ray(self, instances: Sequence[Instance]) -> None:
        """Stop Ray on these instances; the instances stay."""
        from shoal.bootstrap import node_commands

        await node_commands.stop_ray(self.spec, self.provider, instances)

    async def stop(self, instances: Sequence[Instance]) -> Sequence[str]:
        """Stop instances, or only their Ray where instances cannot be stopped. Returns
        descriptions of what still costs money."""
        if self.capabilities.stops_instances:
            return await self.provider.stop(self.spec, instances)
        await self.stop_ray(instances)
        return ()

    async def terminate(self, instances: Sequence[Instance]) -> None:
        """Terminate instances, or remove the cluster from hosts that stay, and return when that
        is done."""
        try:
            if self.capabilities.stops_ray_first:
                await self._try_stop_ray([i for i in instances if i.state is State.RUNNING])
            if self.existing_hosts is not None:
                await self.existing_hosts.clean_up([i for i in instances if self._is_existing(i)])
        finally:
            await self.provider.terminate(self.spec, instances)

    async def _try_stop_ray(self, instances: Sequence[Instance]) -> None:
        """Stop Ray on what is about to be terminated, as far as it answers."""
        if self.capabilities.workers_start_ray:
            instances = [i for i in instances if i.role == "head"]
        with suppress_and_log(_log, "stop Ray", ShoalError):
            await self.stop_ray(instances)

    def _is_existing(self, instance: Instance) -> bool:
        """Whether the host of an instance exists before and after the cluster."""
        head = self.capabilities.fixed_head
        return self.capabilities.hosts is not None or (head is not None and head.id == instance.id)

    async def release(self) -> Sequence[str]:
        """Delete what was created for the cluster besides its instances. Returns descriptions of
        what was deleted."""
        released = list(await self.provider.release(self.spec))
        if self.existing_hosts is not None and (names := await self.existing_hosts.remove_key()):
            released.append(f"the cluster's key on {', '.join(names)}")
        return released


def _address(instance: Instance) -> str:
    return instance.public_address or instance.address


def check_run_env(spec: ClusterSpec, run_env: RunEnv) -> None:
    """Raise `ConfigError` for `--run-env docker` on a cluster without containers."""
    if run_env == "docker" and spec.head_setup.container is None:
        raise ConfigError(
            f"the nodes of {spec.cluster_name} have no container",
            why="--run-env docker was given, and the cluster file has no docker section",
            fix="leave --run-env out",
        )
