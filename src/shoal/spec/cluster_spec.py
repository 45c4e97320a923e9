"""What the user asked for, typed and frozen, with every default and legacy field resolved.

This is the form in which a cluster's wishes travel through the program and to the head. It is
plain data: no YAML, no provider SDK, no defaults of its own. `spec.load` makes it from a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from shoal.core.node_phase import Role

AutoscalingMode = Literal["default", "aggressive", "conservative"]
AuthMode = Literal["token", "none"]
DownMode = Literal["terminate", "stop"]

# How long `up` may take, and how many commands as long as they may be that should be enough for.
_HAND_SECONDS = 7200.0
_HAND_COMMANDS = 4


@dataclass(frozen=True)
class ContainerSpec:
    """The container that a node's commands and its Ray run in."""

    image: str
    name: str
    engine: Literal["docker", "podman"] = "docker"
    run_options: tuple[str, ...] = ()
    pull_before_run: bool = True
    detect_gpu_runtime: bool = True
    detect_shm_size: bool = True


@dataclass(frozen=True)
class NodeSetup:
    """What makes a bare machine of one type, in one role, a Ray node. Lists are final:
    common, role and per-type commands are already joined in the order in which they run."""

    initialization_commands: tuple[str, ...] = ()
    setup_commands: tuple[str, ...] = ()
    start_commands: tuple[str, ...] = ()
    container: ContainerSpec | None = None


@dataclass(frozen=True)
class NodeType:
    """One kind of machine. `resources` holds what the YAML declares; a provider may know more
    (empty means: ask it). `setup` is for workers of this type; the head's is in ClusterSpec."""

    name: str
    node_config: Mapping[str, Any]
    resources: Mapping[str, float]
    labels: Mapping[str, str]
    min_workers: int
    max_workers: int
    idle_timeout_s: float
    priority: int = 0
    setup: NodeSetup = field(default_factory=NodeSetup)


@dataclass(frozen=True)
class ProviderSpec:
    """Where machines come from: Ray's `provider` section, `type` apart."""

    type: Literal["aws", "gcp", "local", "external", "embedded"]
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class AuthSpec:
    """How a person's machine logs in to a node."""

    ssh_user: str = "ubuntu"
    ssh_private_key: str | None = None
    ssh_public_key: str | None = None
    ssh_proxy_command: str | None = None
    ssh_proxy_use_node_id: bool = False


@dataclass(frozen=True)
class FilesSpec:
    """Which files go to the nodes. `mounts` maps a path on the node to a path here."""

    mounts: Mapping[str, str]
    cluster_synced: tuple[str, ...] = ()
    sync_continuously: bool = False
    rsync_exclude: tuple[str, ...] = ()
    rsync_filter: tuple[str, ...] = ()


@dataclass(frozen=True)
class ScalingSpec:
    """How the size follows the load. The last three are the old autoscaler's settings and keep
    their old meaning; None means that the file does not use them."""

    max_workers: int
    upscaling_speed: float
    idle_timeout_s: float
    initial_workers: int | None = None
    autoscaling_mode: AutoscalingMode | None = None
    target_utilization_fraction: float | None = None


@dataclass(frozen=True)
class HostSpec:
    """What is particular about one machine of one's own. None: as for all."""

    user: str | None = None
    port: int | None = None
    resources: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RegistrySpec:
    """A private registry and how to log in to it. The password itself is never here: it is in an
    environment variable of whoever runs `up`, or a command prints it there."""

    server: str
    username: str
    password_env: str = "SHOAL_REGISTRY_PASSWORD"
    password_command: str = ""


@dataclass(frozen=True)
class VolumeSpec:
    """A disk of its own at some place on a node. One with a `size`, in GiB, is made with its
    machine and goes with it unless it is to be kept; any other is there already. `node_types`
    are those that have it; empty: all."""

    device: str
    size: int = 0
    type: str = ""
    iops: int = 0
    throughput: int = 0
    keep: bool = False
    filesystem: str = "ext4"
    docker_data_root: bool = False
    node_types: tuple[str, ...] = ()


@dataclass(frozen=True)
class MountSpec:
    """A file system that many machines share, at some place on a node: one of EFS, by name or id,
    or a bucket of S3, whose place may be its own address: then it is allowed and not mounted."""

    efs: str = ""
    s3: str = ""
    read_only: bool = False
    node_types: tuple[str, ...] = ()


@dataclass(frozen=True)
class ShoalSettings:
    """What stands under the top-level `shoal:` key. `hosts` has what is particular about single
    machines, by address; `via_head` says that workers are reached through the head;
    `command_timeout_s` is how long one setup command may take, `reach_timeout_s` how long a
    machine may take until it answers (None: as fits the provider); `consolidate` allows moving
    restartable work to fewer or cheaper nodes; `autostop` is how many seconds the whole cluster may
    be idle before it goes (0: for ever); `controller` says whether a controller is left on the head
    at all; `lease` is after how many seconds without a controller a worker ends its part (0:
    never); `environment` is a file of shell settings on every node that is read before anything
    that has to do with Ray; `registry` is where images come from that not everyone may have.
    For clouds: `fallback` has the machine types to take, by node type, when its own is not to
    be had; `on_demand_fallback` allows full price where no spot machine is; `ssh_from` has the
    address ranges from which SSH is let in (empty: the caller's); `down` says whether `down`,
    and who stops by `autostop`, ends machines or only switches them off. `volumes` and `mounts`
    are by the places that they are mounted at."""

    auth: AuthMode = "token"
    hosts: Mapping[str, HostSpec] = field(default_factory=dict)
    via_head: bool = False
    command_timeout_s: float = 1800.0
    reach_timeout_s: float | None = None
    consolidate: bool = False
    autostop: float = 0.0
    controller: bool = True
    environment: str = ""
    lease: float = 900.0
    registry: RegistrySpec | None = None
    fallback: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    on_demand_fallback: bool = False
    ssh_from: tuple[str, ...] = ()
    down: DownMode = "terminate"
    volumes: Mapping[str, VolumeSpec] = field(default_factory=dict)
    mounts: Mapping[str, MountSpec] = field(default_factory=dict)

    def lease_of(self, role: Role) -> float:
        """After how many seconds without a controller a machine ends its part; 0: never. Who wants
        a cluster to go when nobody uses it wants no head that nobody looks after, either."""
        return self.lease if role == "worker" or self.autostop else 0.0

    @property
    def hand_seconds(self) -> float:
        """How long a person may have their hand on the cluster. Machines that are not being worked
        on must not take that for the loss of it, however slow the commands on others are."""
        return max(_HAND_SECONDS, _HAND_COMMANDS * self.command_timeout_s)


@dataclass(frozen=True)
class ClusterSpec:
    """A whole cluster as asked for."""

    cluster_name: str
    provider: ProviderSpec
    auth: AuthSpec
    head_node_type: str
    node_types: Mapping[str, NodeType]
    head_setup: NodeSetup
    files: FilesSpec
    scaling: ScalingSpec
    no_restart: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)
    shoal: ShoalSettings = field(default_factory=ShoalSettings)

    @property
    def head(self) -> NodeType:
        """The node type that the head is made of."""
        return self.node_types[self.head_node_type]

    def volumes_for(self, node_type: str) -> dict[str, VolumeSpec]:
        """The volumes of a node of this type, by their places."""
        return _for_type(self.shoal.volumes, node_type)

    def mounts_for(self, node_type: str) -> dict[str, MountSpec]:
        """The shared file systems of a node of this type, by their places."""
        return _for_type(self.shoal.mounts, node_type)

    def places_for(self, node_type: str) -> list[str]:
        """Where something is mounted on a node of this type."""
        shared = [where for where in self.mounts_for(node_type) if where.startswith("/")]
        return [*self.volumes_for(node_type), *shared]

    def setup_for(self, node_type: str, role: Role) -> NodeSetup:
        """The commands and container for a node of this type in this role."""
        return self.head_setup if role == "head" else self.node_types[node_type].setup

    def container_for(self, node_type: str, role: Role) -> ContainerSpec | None:
        """The container of such a node; none, too, for a type that is no longer in the file."""
        if role == "head":
            return self.head_setup.container
        found = self.node_types.get(node_type)
        return None if found is None else found.setup.container


_Wish = TypeVar("_Wish", VolumeSpec, MountSpec)


def _for_type(wishes: Mapping[str, _Wish], node_type: str) -> dict[str, _Wish]:
    return {
        where: wish
        for where, wish in wishes.items()
        if not wish.node_types or node_type in wish.node_types
    }
