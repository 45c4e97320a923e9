"""Where machines come from: the verbs every provider has, and what it reports.

A provider creates, finds and ends machines. It knows nothing of policy: not how many there
should be, not what runs on them. Its refusals are the classes in `shoal.core.errors`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from shoal.core.errors import ShoalError
from shoal.core.node_phase import Role
from shoal.providers.model import (
    Finding,
    ImageSizeLookup,
    Instance,
    LaunchRequest,
    RegistryLogin,
)
from shoal.ray_runtime.cluster_secrets import Credentials
from shoal.ray_runtime.ray_start import RayStart
from shoal.remote.known_hosts import HostKeyStore
from shoal.remote.runner import Runner
from shoal.spec.cluster_spec import ClusterSpec

if TYPE_CHECKING:
    from shoal.scaling.inputs import Offering  # most commands do without that room

# The exit code of a claim on a machine that is another cluster's.
EXIT_CLAIMED = 75
# The same, where only another user of the machine could change that: it prints who, and which file
# to remove.
EXIT_OWNED_BY_OTHER_USER = 77


class Provider(Protocol):
    """The verbs. All may raise `ProviderError`; all but `create` may be repeated freely, and
    `create` too, with the same tokens."""

    async def check(self, spec: ClusterSpec) -> Sequence[Finding]:
        """What stands in the way of `spec`, found without creating anything."""
        ...

    async def create(
        self, spec: ClusterSpec, launches: Sequence[LaunchRequest]
    ) -> Sequence[Instance]:
        """Ask for machines. Intent is on record before the first one exists, so that whoever
        comes after a crash finds them by `find`. Fewer workers than asked for are returned when
        no more are to be had; `LaunchAttempted` events say why."""
        ...

    async def find(
        self, cluster: str | None = None, role: Role | None = None
    ) -> Sequence[Instance]:
        """The machines of one cluster, or of every cluster that this provider can see; of one
        role, where no others matter."""
        ...

    async def halt(self, spec: ClusterSpec, instances: Sequence[Instance]) -> None:
        """End what runs on these machines for the cluster. The machines stay."""
        ...

    async def stop(self, spec: ClusterSpec, instances: Sequence[Instance]) -> Sequence[str]:
        """Switch machines off, to be started again as they are, and return when they are; what
        cannot be kept so is ended. Where machines cannot be switched off, only what runs on them
        ends. Returns what still costs money, in words."""
        ...

    async def start(self, spec: ClusterSpec, instances: Sequence[Instance]) -> Sequence[Instance]:
        """Switch machines on again, and return them as they then are: often at new addresses."""
        ...

    async def terminate(self, spec: ClusterSpec, instances: Sequence[Instance]) -> None:
        """End machines and return when the provider says that they are gone."""
        ...

    async def release(self, spec: ClusterSpec) -> Sequence[str]:
        """Take away what was made for the cluster beside its machines, once they are gone and
        where nobody else uses it. Returns what that was, in words."""
        ...

    def claim(self, spec: ClusterSpec, instance: Instance, *, force: bool) -> str:
        """A command that makes a machine this cluster's own, or exits with `TAKEN` or
        `KEPT` and prints whose it is. With `force`, what another cluster runs there ends first.
        Empty where the provider's own record is enough."""
        ...

    def on_lapse(self, spec: ClusterSpec, instance: Instance) -> str:
        """A command for the machine by which it ends its part in a cluster that it has lost. Empty
        where that cannot happen."""
        ...

    def runner(self, spec: ClusterSpec, instance: Instance) -> Runner:
        """The way to run things on this machine."""
        ...

    def ray_start(self, spec: ClusterSpec, instance: Instance, head: Instance) -> RayStart:
        """How this machine becomes a node of the cluster that `head` leads."""
        ...


@runtime_checkable
class Presumes(Protocol):
    """A provider that knows where a cluster's head is, if there is one, without looking."""

    def presumed_head(self, spec: ClusterSpec) -> tuple[Instance, str]:
        """That machine, and a command that fails on it unless it is this cluster's head."""
        ...


@runtime_checkable
class Explains(Protocol):
    """A provider whose machines may be UNREACHABLE, and that knows why."""

    @property
    def troubles(self) -> Mapping[str, ShoalError]:
        """What was in the way at the last look, by id."""
        ...


@runtime_checkable
class Entrusts(Protocol):
    """A provider of which the head has to be told more than the file says, and less than this
    machine knows."""

    # What the head's Python needs beside Ray.
    packages: Sequence[str]

    def entrusted(self, spec: ClusterSpec) -> ClusterSpec:
        """The spec as the head may have it: without secrets, and with what only this machine's
        surroundings say."""
        ...


@runtime_checkable
class Vouches(Protocol):
    """A provider that knows its machines by their host keys, and can pass that on: whoever gets it
    need not believe a machine at first sight."""

    host_keys: HostKeyStore


@runtime_checkable
class Keeps(Protocol):
    """A provider whose machines can be kept switched off, to be there sooner the next time."""

    async def retire(self, spec: ClusterSpec, instances: Sequence[Instance]) -> None:
        """Put workers aside that nobody needs now, and end those that shall not be kept. On the
        head, `create` takes what was put aside before it asks for new machines."""
        ...


class Shelf(Protocol):
    """File systems that are there, whoever uses them."""

    def source(self, name: str) -> str:
        """What a machine mounts by NFS for the one with this name or id."""
        ...


@runtime_checkable
class Shares(Protocol):
    """A provider that has file systems which many machines can mount."""

    @property
    def shelf(self) -> Shelf: ...


@runtime_checkable
class Sells(Protocol):
    """A provider that knows its machines better than the catalog that is shipped."""

    async def offers(self, spec: ClusterSpec) -> Sequence[Offering]:
        """What the file's node types can be bought for, and what they will have."""
        ...

    def price_source(self, spec: ClusterSpec) -> str:
        """Where the prices of those offers are from, in words, and of which day they are."""
        ...


@runtime_checkable
class LogsIn(Protocol):
    """A provider that runs registries of images, which its own credentials open."""

    async def login(self, image: str) -> RegistryLogin | None:
        """The way in to the registry that has this image; None for one that is not its own."""
        ...


@runtime_checkable
class Warns(Protocol):
    """A provider that takes machines away, and tells them so beforehand."""

    def warnings(self, spec: ClusterSpec, instance: Instance) -> str:
        """A command that runs on the machine for as long as that lives, and prints a line for
        each thing it is told: `end` and the time, in epoch seconds, at which it will be taken
        away, or `risk` when it may well be. Empty for a machine that is never taken away."""
        ...


@runtime_checkable
class Labels(Protocol):
    """A provider on whose machines something can be written that its console shows."""

    async def label(self, statuses: Mapping[str, str]) -> None:
        """Have machines, by id, carry these statuses. One call for each different status."""
        ...


@runtime_checkable
class Examines(Protocol):
    """A provider that can tell more beforehand than its check."""

    async def examine(self, spec: ClusterSpec, room: ImageSizeLookup) -> Sequence[Finding]:
        """All that would keep `spec` from coming up, found without creating anything. What the
        check finds is not told again."""
        ...


@runtime_checkable
class Introduces(Protocol):
    """A provider of machines that exist before they are nodes: the head must be let into them
    while someone is there who can."""

    async def introduce(self, credentials: Credentials) -> None:
        """Let the cluster's head into every machine that may become its node. One that does not
        answer now is left out."""
        ...
