"""What is to be done on a machine, made from a cluster's spec and its provider: by whoever brings
nodes up, the laptop at first and the controller later."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.bootstrap import interruption_agent, lease_agent, volumes
from shoal.bootstrap.containers.node_container import NodeContainer
from shoal.bootstrap.containers.registry_login import login_source
from shoal.bootstrap.node_plan import Mode, NodePlan
from shoal.cluster.node_runner import node_runner
from shoal.providers.model import Instance
from shoal.providers.protocol import Provider, Warns
from shoal.spec.cluster_spec import ClusterSpec, ContainerSpec, FilesSpec

# Machines that should be up already get less time to answer than ones that boot.
_REACH_SECONDS = {"local": 60.0}
_BOOT_SECONDS = 300.0


def files_for(spec: ClusterSpec) -> FilesSpec:
    """The files that are sent. Embedded nodes see this machine's own."""
    return FilesSpec(mounts={}) if spec.provider.type == "embedded" else spec.files


@dataclass(frozen=True)
class NodePlanner:
    """A cluster's wishes for its machines. `files_digest` stands for the content of the files,
    which only the machine that sends them first can tell."""

    spec: ClusterSpec
    provider: Provider
    files_digest: str
    force: bool = False

    def work(self, instance: Instance, head: Instance, mode: Mode = "full") -> NodePlan:
        """All that is to be done on one machine."""
        spec = self.spec
        container = spec.container_for(instance.node_type, instance.role)
        return NodePlan(
            instance=instance,
            runner=self.provider.runner(spec, instance),
            inside=node_runner(self.provider, spec, instance),
            setup=spec.setup_for(instance.node_type, instance.role),
            start=self.provider.ray_start(spec, instance, head),
            files=files_for(spec),
            files_digest=self.files_digest,
            claim=self.provider.claim(spec, instance, force=self.force),
            lease=self._lease(instance, head),
            notices=self._notices(instance, head),
            disks=volumes.wishes(spec, self.provider, instance),
            house=self._house(container, instance) if container else None,
            mode=mode,
            reach_seconds=spec.shoal.reach_timeout_s
            or _REACH_SECONDS.get(spec.provider.type, _BOOT_SECONDS),
            command_seconds=spec.shoal.command_timeout_s,
        )

    def _house(self, container: ContainerSpec, instance: Instance) -> NodeContainer:
        login = login_source(self.spec.shoal.registry, self.provider, container.image)
        return NodeContainer(container, instance, login)

    def _lease(self, instance: Instance, head: Instance) -> str:
        """How a machine ends itself when it has lost its cluster."""
        on_lapse = self.provider.on_lapse(self.spec, instance)
        if not on_lapse:
            return ""
        start = self.provider.ray_start(self.spec, instance, head)
        settings = self.spec.shoal
        return lease_agent.watch_command(
            start.gcs_address,
            instance.role,
            settings.lease_of(instance.role),
            on_lapse,
            hand_seconds=settings.hand_seconds,
            attended=settings.controller,
        )

    def _notices(self, instance: Instance, head: Instance) -> str:
        """How the controller hears that the machine will be taken away."""
        if not isinstance(self.provider, Warns) or not self.spec.shoal.controller:
            return ""
        watch = self.provider.warnings(self.spec, instance)
        if not watch:
            return ""
        start = self.provider.ray_start(self.spec, instance, head)
        return interruption_agent.agent_command(start.gcs_address, instance.id, watch)
