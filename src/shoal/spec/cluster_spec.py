"""`ClusterSpec`: a cluster file as typed, frozen data, with defaults and legacy keys resolved.

`spec.load` creates it. All other code, on the laptop and on the head, reads this and never YAML.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from shoal.core.node_phase import Role

AutoscalingMode = Literal["default", "aggressive", "conservative"]
AuthMode = Literal["token", "none"]
DownMode = Literal["terminate", "stop"]

# How long `up` may pause the controller: this long, or as long as this many commands may take.
_MAINTENANCE_S = 7200.0
_MAINTENANCE_COMMANDS = 4


@dataclass(frozen=True)
class ContainerSpec:
    """The container that a node's commands and its Ray run in."""

    image: str
    name: str
    runtime: Literal["docker", "podman"] = "docker"
    run_options: tuple[str, ...] = ()
    pull_before_run: bool = True
    detect_gpu_runtime: bool = True
    detect_shm_size: bool = True


@dataclass(frozen=True)
class NodeSetup:
    """The commands and the container that turn an instance of one type, in one role, into a Ray
    node. Common, role and per-type commands are already joined, in the order in which they run."""

    initialization_commands: tuple[str, ...] = ()
    setup_commands: tuple[str, ...] = ()
    start_commands: tuple[str, ...] = ()
    container: ContainerSpec | None = None


@dataclass(frozen=True)
class NodeType:
    """An entry of `available_node_types`. `resources` holds what the file declares; if empty, the
    provider knows them. `setup` is for workers of this type; the head's is in `ClusterSpec`."""

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
    """The `provider` section: `type` names the provider, `settings` has all other keys."""

    type: str
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class AuthSpec:
    """How the laptop logs in to a node."""

    ssh_user: str = "ubuntu"
    ssh_private_key: str | None = None
    ssh_public_key: str | None = None
    ssh_proxy_command: str | None = None
    ssh_proxy_use_node_id: bool = False


@dataclass(frozen=True)
class FilesSpec:
    """Which files are copied to the nodes. `mounts` maps a path on the node to a local path."""

    mounts: Mapping[str, str]
    cluster_synced: tuple[str, ...] = ()
    sync_continuously: bool = False
    rsync_exclude: tuple[str, ...] = ()
    rsync_filter: tuple[str, ...] = ()


@dataclass(frozen=True)
class ScalingSpec:
    """How the cluster scales with the load. The last three are settings of Ray's legacy autoscaler
    and keep their meaning; None if the file does not set them."""

    max_workers: int
    upscaling_speed: float
    idle_timeout_s: float
    initial_workers: int | None = None
    autoscaling_mode: AutoscalingMode | None = None
    target_utilization_fraction: float | None = None


@dataclass(frozen=True)
class HostSpec:
    """Settings of a single host of a `local` cluster. None: the cluster's setting applies."""

    user: str | None = None
    port: int | None = None
    resources: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RegistrySpec:
    """A private container registry and its login. The password is never part of the spec: it comes
    from an environment variable, or from the output of a command, where `shoal up` runs."""

    server: str
    username: str
    password_env: str = "SHOAL_REGISTRY_PASSWORD"
    password_command: str = ""


@dataclass(frozen=True)
class VolumeSpec:
    """A disk that is mounted on nodes. With a `size`, in GiB, it is created with the instance, and
    deleted with it unless `keep` is set; otherwise `device` already exists. `node_types` lists the
    types that have it; empty: all."""

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
    """A shared file system that is mounted on nodes: an EFS file system, by name or id, or an S3
    bucket. A bucket whose mount point is an s3:// URL is not mounted; nodes only get access. `tls`
    encrypts the traffic of an EFS file system, which its policy may require."""

    efs: str = ""
    s3: str = ""
    read_only: bool = False
    tls: bool = False
    node_types: tuple[str, ...] = ()


@dataclass(frozen=True)
class ShoalSettings:
    """The settings under the top-level `shoal:` key.

    - `hosts`: settings of single hosts, by address.
    - `via_head`: workers are reached through the head.
    - `command_timeout_s`: the timeout of one setup command.
    - `reach_timeout_s`: how long an instance may take until SSH answers; None: the provider's
      default.
    - `consolidate`: allows moving restartable work to fewer or cheaper nodes.
    - `max_concurrent_launches`: how many instances may be launching at once; 0: any number.
    - `autostop`: the idle time, in seconds, after which the cluster stops; 0: never.
    - `controller`: whether a controller runs on the head.
    - `lease`: the time, in seconds, without a controller after which a worker shuts down; 0: never.
    - `code`, `requirements`: the defaults of --code and --requirements, absolute paths.
    - `provider_path`: a directory, as an absolute path, with the code of an external provider.
    - `environment`: a shell file on every node that is sourced before each Ray command.
    - `registry`: the login of a private container registry.
    - `fallback`: by node type, other instance types to launch if its own has no capacity.
    - `on_demand_fallback`: allows on-demand instances if there is no spot capacity.
    - `bake`: makes an image of the first node of each type that was set up, for later nodes.
    - `ssh_from`: the CIDR ranges that may connect by SSH; empty: the caller's address.
    - `tags`: tags of everything that is created in a cloud for the cluster.
    - `down`: whether `down` and `autostop` terminate or stop instances.
    - `volumes`, `mounts`: disks and shared file systems, by mount point.
    """

    auth: AuthMode = "token"
    hosts: Mapping[str, HostSpec] = field(default_factory=dict)
    via_head: bool = False
    command_timeout_s: float = 1800.0
    reach_timeout_s: float | None = None
    consolidate: bool = False
    max_concurrent_launches: int = 0
    autostop: float = 0.0
    controller: bool = True
    environment: str = ""
    code: str = ""
    requirements: str = ""
    provider_path: str = ""
    lease: float = 900.0
    registry: RegistrySpec | None = None
    fallback: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    on_demand_fallback: bool = False
    bake: bool = False
    ssh_from: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    down: DownMode = "terminate"
    volumes: Mapping[str, VolumeSpec] = field(default_factory=dict)
    mounts: Mapping[str, MountSpec] = field(default_factory=dict)

    def lease_for(self, role: Role) -> float:
        """The time, in seconds, without a controller after which a node shuts down; 0: never. The
        head only has a lease with `autostop`: it must not outlive its controller then."""
        return self.lease if role == "worker" or self.autostop else 0.0

    @property
    def max_maintenance_s(self) -> float:
        """How long a command such as `up` may pause the controller. Nodes must not shut down for
        lack of a controller during that time, however slow the commands on other nodes are."""
        return max(_MAINTENANCE_S, _MAINTENANCE_COMMANDS * self.command_timeout_s)


@dataclass(frozen=True)
class ClusterSpec:
    """A cluster as its file describes it."""

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
        """The head's node type."""
        return self.node_types[self.head_node_type]

    def volumes_for(self, node_type: str) -> dict[str, VolumeSpec]:
        """The volumes of a node of this type, by mount point."""
        return _for_type(self.shoal.volumes, node_type)

    def mounts_for(self, node_type: str) -> dict[str, MountSpec]:
        """The shared file systems of a node of this type, by mount point."""
        return _for_type(self.shoal.mounts, node_type)

    def mount_points_for(self, node_type: str) -> list[str]:
        """Where volumes and shared file systems are mounted on a node of this type."""
        shared = [path for path in self.mounts_for(node_type) if path.startswith("/")]
        return [*self.volumes_for(node_type), *shared]

    def setup_for(self, node_type: str, role: Role) -> NodeSetup:
        """The commands and container for a node of this type in this role."""
        return self.head_setup if role == "head" else self.node_types[node_type].setup

    def container_for(self, node_type: str, role: Role) -> ContainerSpec | None:
        """The container of such a node, if any; None for a type that is no longer in the file."""
        if role == "head":
            return self.head_setup.container
        entry = self.node_types.get(node_type)
        return None if entry is None else entry.setup.container


_Mounted = TypeVar("_Mounted", VolumeSpec, MountSpec)


def _for_type(section: Mapping[str, _Mounted], node_type: str) -> dict[str, _Mounted]:
    return {
        path: entry
        for path, entry in section.items()
        if not entry.node_types or node_type in entry.node_types
    }
