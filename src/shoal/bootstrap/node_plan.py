"""All that is to be done on one machine, as data. Does nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shoal.bootstrap import volumes
from shoal.bootstrap.applied_state import AppliedState, digest
from shoal.bootstrap.containers.node_container import NodeContainer
from shoal.providers.model import Instance
from shoal.ray_runtime.ray_start import RayStart
from shoal.remote.runner import Runner
from shoal.spec.cluster_spec import FilesSpec, NodeSetup

Mode = Literal["full", "update", "restart"]


@dataclass(frozen=True)
class NodePlan:
    """A machine, and all that is to be done on it.

    `runner` leads to the machine, `inside` to where its commands and its Ray run: in its `house`,
    if it has one.
    `mode` says how much: all of it, all but touching a Ray that runs, or only Ray's restart.
    `disks` is what is to be mounted there, before anything else.
    `lease` is a command that has the machine end itself when it has lost its cluster, `notices`
    one that has the controller hear when its provider is about to take it away.
    `reach_seconds` is how long the machine may take to answer, `command_seconds` how long one
    of the user's commands may take.
    """

    instance: Instance
    runner: Runner
    inside: Runner
    setup: NodeSetup
    start: RayStart
    files: FilesSpec
    files_digest: str
    claim: str = ""
    lease: str = ""
    notices: str = ""
    disks: tuple[volumes.MountRequest, ...] = ()
    house: NodeContainer | None = None
    mode: Mode = "full"
    reach_seconds: float = 300.0
    command_seconds: float = 1800.0

    @property
    def goal(self) -> AppliedState:
        """The receipt of a machine that has been through all of it. The setup counts the files,
        since setup commands may read them."""
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
            container="" if self.house is None else self.house.origin,
            disks=digest(self.disks) if self.disks else "",
        )
