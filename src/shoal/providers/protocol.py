"""What a provider is: the verbs that every cloud has, and one value for what some can do beyond.

A provider launches, lists and terminates instances. It knows nothing of policy (how many there
should be), of bootstrap or of Ray (what runs on them). Its errors are the classes in
`shoal.core.errors`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from shoal.core.errors import ShoalError
from shoal.core.node_phase import Role
from shoal.providers.host_claims import Claim
from shoal.providers.model import (
    Finding,
    ImageSizeLookup,
    Instance,
    LaunchRequest,
    RegistryLogin,
    SharedMachine,
)
from shoal.remote.known_hosts import HostKeyStore
from shoal.remote.runner import Runner
from shoal.spec.cluster_spec import ClusterSpec

if TYPE_CHECKING:
    from shoal.providers.baked_images import ImageService
    from shoal.scaling.inputs import Offering  # most commands do without that room


@dataclass(frozen=True)
class Capabilities:
    """What differs between providers beyond their verbs. A capability that a provider lacks keeps
    its default; the defaults describe a cloud that bills for instances reached by SSH.

    Facts about instances:
    `costs_money`: instances are billed.
    `stops_instances`: `stop` powers instances off. Without it a stopped cluster is one whose Ray
    is stopped, and `stop` and `start` are never called.
    `terminates_in_batches`: many instances are best terminated in one call. Without it each is
    terminated alone, because one that is unreachable must not delay the others.
    `list_interval_s`: how often the controller lists instances.
    `boot_timeout_s`: how long a new instance may take until SSH answers.
    `boot_timeout_for`: the same for one instance, where it depends on the instance type.
    `on_lease_expired`: the shell command by which an instance that has lost its cluster
    terminates itself; empty if it cannot lose it or cannot terminate itself.
    `first_boot_wait`: a command that returns on an instance when its first boot is complete; empty
    if SSH answers only then. It runs before the commands of the user.
    `head_packages`: Python packages that the provider needs on the head, besides Ray.
    `head_key`: the private key with which the head logs in to instances that it launches, where
    they cannot be given the cluster's own key. It is copied to the head.
    `controller_launches_workers`: only the controller launches workers: `up` launches the head and
    waits for them, and `down` has them terminated on the head. For providers whose state is in one
    process.
    `workers_start_ray`: workers start Ray themselves, with their instance id in
    RAY_CLOUD_INSTANCE_ID; nothing logs in to them.
    `stops_ray_first`: Ray is stopped on an instance before it is terminated, because the machine
    may stay.

    Hosts that exist before and after the cluster:
    `hosts`: all hosts that may become nodes, the head first. `launch` picks from them.
    `claim`: what to write on a host to make it this cluster's, for hosts that several clusters
    may want; None for an instance that was launched.
    `fixed_head`: the head if the cluster is up, known without a call.
    `unreachable_reasons`: by instance id, why the last listing could not reach an instance.
    `unusable_hosts`: by instance id, why this cluster cannot use a host that the last listing
    found, unless the user changes something: it is another cluster's, or it refuses the login.
    `host_resources`: by instance id, the resources that Ray would detect on a host, as far as they
    are known.

    Instances that share this machine:
    `shared_machine`: the ports and directories of an instance whose processes run on this
    machine. Such instances see its files and its Python.
    `end_processes`: ends everything that runs on instances, without logging in to them.

    Optional services of a cloud:
    `host_keys`: the pinned SSH host keys of the instances, to be passed on to the head.
    `head_spec`: the spec for the head, without secrets and with what only this machine knows.
    `stop_or_terminate`: stops idle workers so that `launch` can start them again, and terminates
    those that cannot be stopped.
    `file_system_source`: what a node mounts by NFS for the shared file system of this name or id.
    `price_source`: where the prices of `offerings` come from, and their date.
    `registry_login`: login for the registry of an image; None for another's registry.
    `interruption_watch_command`: a command that runs on an instance and prints a line for each
    interruption notice: `termination` and its time in epoch seconds, or `rebalance`. Empty for
    an instance that is never interrupted.
    `disconnect`: closes this machine's connections to instances; an idle one counts as a session,
    and keeps an instance that never became a node from terminating itself.
    `tag_status`: tags instances, by id, with their bootstrap status.
    `images`: makes images of nodes that were set up, and launches later ones from them.
    `deep_preflight`: checks that need many calls to the cloud, made only before new instances
    are launched. Does not repeat the findings of `preflight`.
    """

    costs_money: bool = True
    stops_instances: bool = True
    terminates_in_batches: bool = True
    list_interval_s: float = 20.0
    boot_timeout_s: float = 300.0
    boot_timeout_for: Callable[[Instance], float] | None = None
    on_lease_expired: str = ""
    first_boot_wait: str = ""
    head_packages: Sequence[str] = ()
    head_key: Callable[[], bytes | None] | None = None
    controller_launches_workers: bool = False
    workers_start_ray: bool = False
    stops_ray_first: bool = False

    hosts: Callable[[], Sequence[Instance]] | None = None
    claim: Callable[[Instance], Claim | None] | None = None
    fixed_head: Instance | None = None
    unreachable_reasons: Callable[[], Mapping[str, ShoalError]] | None = None
    unusable_hosts: Callable[[], Mapping[str, ShoalError]] | None = None
    host_resources: Callable[[], Mapping[str, Mapping[str, float]]] | None = None

    shared_machine: Callable[[Instance], SharedMachine] | None = None
    end_processes: Callable[[Sequence[Instance]], Coroutine[Any, Any, None]] | None = None

    host_keys: HostKeyStore | None = None
    head_spec: Callable[[ClusterSpec], ClusterSpec] | None = None
    stop_or_terminate: (
        Callable[[ClusterSpec, Sequence[Instance]], Coroutine[Any, Any, None]] | None
    ) = None
    file_system_source: Callable[[str], str] | None = None
    price_source: Callable[[ClusterSpec], str] | None = None
    registry_login: Callable[[str], Coroutine[Any, Any, RegistryLogin | None]] | None = None
    interruption_watch_command: Callable[[Instance], str] | None = None
    disconnect: Callable[[Sequence[Instance]], Coroutine[Any, Any, None]] | None = None
    tag_status: Callable[[Mapping[str, str]], Coroutine[Any, Any, None]] | None = None
    images: ImageService | None = None
    deep_preflight: (
        Callable[[ClusterSpec, ImageSizeLookup], Coroutine[Any, Any, Sequence[Finding]]] | None
    ) = None

    def boot_timeout(self, instance: Instance) -> float:
        """How long this instance may take until SSH answers."""
        return self.boot_timeout_for(instance) if self.boot_timeout_for else self.boot_timeout_s

    def claim_of(self, instance: Instance) -> Claim | None:
        """What to write on this instance's host; None if its provider says whose it is."""
        return self.claim(instance) if self.claim is not None else None

    @property
    def has_leases(self) -> bool:
        """Whether a node that loses its cluster leaves it by itself."""
        return bool(self.on_lease_expired) or self.claim is not None

    @property
    def shares_this_machine(self) -> bool:
        """Whether all instances run on this machine and see its files."""
        return self.shared_machine is not None


class Provider(Protocol):
    """A cloud. Every verb may raise `ProviderError` and may be repeated; repeating `launch` with
    the same tokens launches nothing more. A provider that inherits from this class need not write
    the verbs that have a body here."""

    @property
    def capabilities(self) -> Capabilities:
        """What this provider can do beyond the verbs. The value never changes."""
        return Capabilities()

    async def preflight(self, spec: ClusterSpec) -> Sequence[Finding]:
        """Problems that would keep `spec` from working, found without creating anything and with
        few calls."""
        return ()

    async def launch(
        self, spec: ClusterSpec, requests: Sequence[LaunchRequest]
    ) -> Sequence[Instance]:
        """Launch instances. Each must be visible to `list_instances` as soon as it exists, so
        that a later command finds what a crashed one launched. Returns fewer workers than
        requested when capacity is short; `LaunchAttempted` events say why."""
        ...

    async def list_instances(
        self, cluster: str | None = None, role: Role | None = None
    ) -> Sequence[Instance]:
        """The instances of one cluster, or of every cluster that this provider can see; only
        those of one role if a role is given. Terminated instances are left out."""
        ...

    async def stop(self, spec: ClusterSpec, instances: Sequence[Instance]) -> Sequence[str]:
        """Power instances off and wait until they are; those that cannot be stopped are
        terminated. Returns descriptions of what still costs money."""
        return ()

    async def start(self, spec: ClusterSpec, instances: Sequence[Instance]) -> Sequence[Instance]:
        """Power stopped instances on, and return them with their new addresses."""
        return instances

    async def terminate(self, spec: ClusterSpec, instances: Sequence[Instance]) -> None:
        """Terminate instances and wait until the provider reports that they are gone."""
        ...

    async def release(self, spec: ClusterSpec) -> Sequence[str]:
        """Delete what was created for the cluster besides its instances (keys, networks, roles),
        once nothing uses it. Returns descriptions of what was deleted."""
        return ()

    async def offerings(self, spec: ClusterSpec) -> Sequence[Offering]:
        """What the node types can be launched as, at which price and with which resources. Empty
        if nothing is sold."""
        return ()

    def runner(self, spec: ClusterSpec, instance: Instance) -> Runner:
        """Runs commands on an instance, usually by SSH."""
        ...
