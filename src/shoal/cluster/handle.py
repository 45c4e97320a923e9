"""A cluster's spec and its provider, joined: what can be seen of it, and what is to be done on
each of its machines."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from shoal.cluster.node_runner import node_runner
from shoal.core.concurrency import run_all
from shoal.core.errors import ConfigError, NotFoundError, ShoalError
from shoal.ops.context import Context
from shoal.providers import provider_for
from shoal.providers.model import Finding, Instance, State
from shoal.providers.protocol import Presumes, Provider
from shoal.ray_runtime.nodes import RayNode, probe_command, ray_nodes, version_command
from shoal.remote.runner import Runner, capture
from shoal.spec.cluster_spec import ClusterSpec, FilesSpec

if TYPE_CHECKING:
    from shoal.bootstrap.node_plan import Mode, NodePlan, NodePlanner
    from shoal.bootstrap.node_probe import NodeProbe
    from shoal.ops.up_plan import ObservedCluster

RunEnv = Literal["auto", "host", "docker"]

_VERSION_SECONDS = 10.0


class ClusterHandle:
    """One cluster, as operations see it."""

    def __init__(self, provider: Provider, spec: ClusterSpec, *, force: bool = False) -> None:
        self.provider = provider
        self.spec = spec
        self._force = force

    @classmethod
    def of(cls, ctx: Context, spec: ClusterSpec) -> ClusterHandle:
        return cls(provider_for(spec, ctx.home, ctx.clock), spec)

    @cached_property
    def files(self) -> FilesSpec:
        """The files that are sent."""
        from shoal.bootstrap.node_plan import files_for

        return files_for(self.spec)

    @cached_property
    def orders(self) -> NodePlanner:
        """What is wanted of the cluster's machines."""
        from shoal.bootstrap.node_plan import (
            NodePlanner,  # only those need it who change something
        )
        from shoal.spec.hashes import files_hash

        return NodePlanner(self.spec, self.provider, files_hash(self.files), force=self._force)

    def check_files(self) -> list[Finding]:
        """File mounts whose source is not there, and wishes for files that cannot be met."""
        findings = [
            Finding(
                "error",
                f"file_mounts: {here} does not exist",
                why=f"it is to become {there} on every node",
                fix=f"take {there} out, or correct the path",
                at=("files", "mounts", there),
            )
            for there, here in self.files.mounts.items()
            if not Path(here).exists()
        ]
        if self.files.sync_continuously:
            findings.append(
                Finding(
                    "warning",
                    "file_mounts_sync_continuously has no effect",
                    why="files are sent when something asks for it",
                    fix="shoal up sends what has changed",
                )
            )
        return findings

    def work(self, instance: Instance, head: Instance, mode: Mode = "full") -> NodePlan:
        """All that is to be done on one machine."""
        return self.orders.plan(instance, head, mode)

    async def look(self, there: Sequence[Instance] | None = None) -> ObservedCluster:
        """All that can be seen of the cluster's machines, each asked once and side by side. `there`
        is the provider's list, for one who has it already."""
        from shoal.ops.up_plan import ObservedCluster

        instances = there
        if instances is None:
            instances = await self.provider.find(self.spec.cluster_name)
        head = next((i for i in instances if i.role == "head"), None)
        works = {
            i.id: self.work(i, head or i) for i in instances if i.node_type in self.spec.node_types
        }
        running = [w for w in works.values() if w.instance.state is State.RUNNING]
        answers = await run_all(self._vitals(work.instance) for work in running)
        return ObservedCluster(
            instances=instances,
            vitals={w.instance.id: said for w, said in zip(running, answers, strict=True) if said},
            goals={id: work.desired_state for id, work in works.items()},
        )

    def inside(self, instance: Instance, run_env: RunEnv = "auto") -> Runner:
        """The way to a node's own commands, in its container if it has one, or to its machine."""
        if run_env == "host":
            return self.provider.runner(self.spec, instance)
        return node_runner(self.provider, self.spec, instance)

    async def vitals(self, instance: Instance) -> NodeProbe:
        """How a machine is, by its own account."""
        from shoal.bootstrap import node_probe

        container = self.spec.container_for(instance.node_type, instance.role)
        runner = self.provider.runner(self.spec, instance)
        places = self.spec.mount_points_for(instance.node_type)
        return await node_probe.read(runner, instance, container, places)

    async def ray_version(self, instance: Instance, head: Instance) -> str:
        """The Ray that a machine has; nothing, if it does not say."""
        start = self.provider.ray_start(self.spec, instance, head)
        runner = self.inside(instance)
        try:
            _, printed = await capture(
                runner, start.command(version_command(start.python)), timeout=_VERSION_SECONDS
            )
        except (ShoalError, TimeoutError):
            return ""
        return printed[-1] if printed else ""

    async def head(self) -> Instance:
        """The head, or the reason why there is none to talk to."""
        head = next(iter(await self.provider.find(self.spec.cluster_name, "head")), None)
        if head is None:
            raise NotFoundError(
                f"cluster {self.spec.cluster_name} is not up",
                why="it has no head to run anything on",
                fix="shoal up",
            )
        return head

    def presumed_head(self, run_env: RunEnv) -> tuple[Instance, str] | None:
        """The head where it must be, if there is one, and a command to make sure there; None where
        only a look can tell."""
        housed = self.spec.head_setup.container is not None and run_env != "host"
        if housed or not isinstance(self.provider, Presumes):
            return None
        return self.provider.presumed_head(self.spec)

    async def named(self, node: str) -> Instance:
        """The machine with this address or name."""
        instances = await self.provider.find(self.spec.cluster_name)
        for instance in instances:
            if node in (instance.name, instance.address, instance.public_address):
                return instance
        known = ", ".join(f"{i.name} ({i.public_address or i.address})" for i in instances)
        raise NotFoundError(
            f"cluster {self.spec.cluster_name} has no node {node}", why=f"it has {known}"
        )

    async def alive(self, head: Instance) -> dict[str, RayNode]:
        """The nodes that Ray counts as alive, by instance id; none when Ray does not answer."""
        start = self.provider.ray_start(self.spec, head, head)
        runner = self.inside(head)
        command = start.command(probe_command(start.python, start.gcs_address))
        try:
            return await ray_nodes(runner, command, start.driver_env())
        except ShoalError:
            return {}

    async def _vitals(self, instance: Instance) -> NodeProbe | None:
        """How a machine is; None for one that does not say, which may well be busy."""
        try:
            return await self.vitals(instance)
        except ShoalError:
            return None


def check_run_env(spec: ClusterSpec, run_env: RunEnv) -> None:
    """Raise `ConfigError` for a wish to be in a container on a cluster that has none."""
    if run_env == "docker" and spec.head_setup.container is None:
        raise ConfigError(
            f"the nodes of {spec.cluster_name} have no container to do this in",
            why="--run-env docker was given, and the cluster's file has no docker section",
            fix="leave --run-env out",
        )
