"""What bootstrap must do on one node, as data, derived from a cluster's spec and its provider.
Used by `up` on the laptop and by the controller on the head. Runs nothing."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from shoal.bootstrap import agents, claims, volumes
from shoal.bootstrap.applied_state import AppliedState, digest
from shoal.bootstrap.containers.node_container import NodeContainer
from shoal.bootstrap.containers.registry_login import login_source
from shoal.bootstrap.node_commands import stop_ray
from shoal.bootstrap.node_ray_start import ray_start_for
from shoal.bootstrap.node_runner import node_runner
from shoal.bootstrap.setup_hash import setup_hash
from shoal.bootstrap.volumes import MountRequest
from shoal.core.node_phase import Role
from shoal.providers.model import Instance
from shoal.providers.protocol import Capabilities, Provider
from shoal.ray_runtime.ray_start import RayStart
from shoal.remote.runner import Runner
from shoal.spec.cluster_spec import ClusterSpec, ContainerSpec, FilesSpec, NodeSetup

Mode = Literal["full", "update", "restart"]


@dataclass(frozen=True)
class NodePlan:
    """Everything bootstrap needs to know about one node.

    `runner` runs commands on the host; `node_runner` runs them where Ray runs: in the node's
    `container` if it has one, on the host otherwise.
    `mode` is `full` (every step), `update` (every step, but a running Ray is not restarted) or
    `restart` (only restart Ray). `stops_ray` is whether Ray runs now and must be restarted;
    `stop_ray` stops it.
    `volumes` are mounted before any other step.
    `first_boot_wait` is the command that returns when the host's first boot is complete; empty if
    there is nothing to wait for.
    `lease_agent` is the command that starts the lease agent, `interruption_agent` the command
    that starts the interruption agent; empty if the node has none.
    `setup_hash` is set if the host may have been launched from an image on which setup is complete,
    `bake` makes such an image.
    `reach_seconds` bounds the wait for SSH, `command_seconds` each of the user's commands.
    """

    instance: Instance
    runner: Runner
    node_runner: Runner
    setup: NodeSetup
    start: RayStart
    files: FilesSpec
    files_digest: str
    claim: str = ""
    lease_agent: str = ""
    interruption_agent: str = ""
    volumes: tuple[MountRequest, ...] = ()
    first_boot_wait: str = ""
    setup_hash: str = ""
    bake: Callable[[str], Awaitable[str | None]] | None = None
    container: NodeContainer | None = None
    mode: Mode = "full"
    stops_ray: bool = False
    stop_ray: Callable[[], Awaitable[None]] | None = None
    reach_seconds: float = 300.0
    command_seconds: float = 1800.0

    @property
    def desired_state(self) -> AppliedState:
        """The applied state of a node on which every step has succeeded. The setup digest covers
        the files, because setup commands may read them."""
        return AppliedState(
            files=self.files_digest,
            setup=digest(
                [
                    self.files_digest,
                    self.setup.initialization_commands,
                    self.setup.setup_commands,
                ]
            ),
            start=digest([self.start.commands, self.start.prelude, dict(self.start.env)]),
            container="" if self.container is None else self.container.digest,
            volumes=digest(self.volumes) if self.volumes else "",
        )


def files_for(spec: ClusterSpec, capabilities: Capabilities) -> FilesSpec:
    """The files to send. Nodes that share this machine see its files and get none."""
    return FilesSpec(mounts={}) if capabilities.shares_this_machine else spec.files


@dataclass(frozen=True)
class NodePlanner:
    """Makes node plans for one cluster. `files_digest` covers the content of the file mounts; it
    is passed in because only the machine that holds the files can compute it."""

    spec: ClusterSpec
    provider: Provider
    files_digest: str
    force: bool = False

    def plan(
        self,
        instance: Instance,
        head: Instance,
        mode: Mode = "full",
        *,
        stops_ray: bool = False,
    ) -> NodePlan:
        """The plan for one node."""
        spec = self.spec
        container = spec.container_for(instance.node_type, instance.role)
        capabilities = self.provider.capabilities
        start = ray_start_for(capabilities, spec, instance, head)
        hash = self.setup_hash(instance.node_type, instance.role)
        images = capabilities.images
        return NodePlan(
            instance=instance,
            runner=self.provider.runner(spec, instance),
            node_runner=node_runner(self.provider, spec, instance),
            setup=spec.setup_for(instance.node_type, instance.role),
            start=start,
            files=files_for(spec, capabilities),
            files_digest=self.files_digest,
            claim=self.claim(instance),
            lease_agent=self._lease_agent(instance, start),
            interruption_agent=self._interruption_agent(instance, start),
            volumes=volumes.mount_requests(spec, self.provider, instance),
            first_boot_wait=capabilities.first_boot_wait,
            setup_hash=hash,
            bake=functools.partial(images.bake, spec, instance, hash) if images and hash else None,
            container=self._container(container, instance) if container else None,
            mode=mode,
            stops_ray=stops_ray,
            stop_ray=functools.partial(stop_ray, spec, self.provider, [instance]),
            reach_seconds=spec.shoal.reach_timeout_s or capabilities.boot_timeout(instance),
            command_seconds=spec.shoal.command_timeout_s,
        )

    def setup_hash(self, node_type: str, role: Role) -> str:
        """The setup hash of such nodes; empty if no images are baked of them."""
        spec = self.spec
        if not spec.shoal.bake or self.provider.capabilities.images is None:
            return ""
        if node_type not in spec.node_types or spec.volumes_for(node_type):
            return ""  # what setup leaves on a volume of its own is not in an image
        return setup_hash(spec, node_type, role, self.files_digest)

    def _container(self, container: ContainerSpec, instance: Instance) -> NodeContainer:
        login = login_source(self.spec.shoal.registry, self.provider, container.image)
        return NodeContainer(container, instance, login)

    def claim(self, instance: Instance) -> str:
        """The command that claims an instance's host; empty where the provider's own records say
        whose an instance is."""
        claim = self.provider.capabilities.claim_of(instance)
        return claims.claim_command(claim, force=self.force) if claim else ""

    def _lease_agent(self, instance: Instance, start: RayStart) -> str:
        capabilities, settings = self.provider.capabilities, self.spec.shoal
        on_expired = capabilities.on_lease_expired
        if (claim := capabilities.claim_of(instance)) is not None:
            on_expired = claims.on_lease_expired(self.spec.cluster_name, claim)
        if not on_expired:
            return ""
        return agents.lease_agent_command(
            start.gcs_address,
            instance.role,
            settings.lease_for(instance.role),
            on_expired,
            controller_wait_seconds=settings.max_maintenance_s,
            has_controller=settings.controller,
        )

    def _interruption_agent(self, instance: Instance, start: RayStart) -> str:
        watch_command = self.provider.capabilities.interruption_watch_command
        if watch_command is None or not self.spec.shoal.controller:
            return ""
        watch = watch_command(instance)
        if not watch:
            return ""
        return agents.interruption_agent_command(start.gcs_address, instance.id, watch)
