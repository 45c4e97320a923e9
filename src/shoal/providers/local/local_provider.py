"""Machines of one's own: found in a list, claimed, used over SSH, and let go again.

Nothing is created or ended here but what runs on the machines. Which of them belong to the
cluster is written on each of them; no file on the caller's side is needed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from shoal.core.clock import Clock
from shoal.core.concurrency import run_all
from shoal.core.errors import CapacityError, SetupError, ShoalError
from shoal.core.node_phase import Role
from shoal.providers import ssh_common
from shoal.providers.local import claims
from shoal.providers.model import Finding, Instance, LaunchRequest, State
from shoal.ray_runtime import cluster_secrets
from shoal.ray_runtime.cluster_secrets import Credentials
from shoal.ray_runtime.ray_start import RayStart
from shoal.ray_runtime.ray_stop import stop_command
from shoal.remote.container import remove_containers
from shoal.remote.known_hosts import SharedHostKeys
from shoal.remote.runner import Runner, capture
from shoal.remote.ssh_runner import SshRunner
from shoal.remote.ssh_target import SshTarget, control_directory
from shoal.spec.cluster_spec import ClusterSpec, HostSpec

# How long a machine may take to answer when we only look.
_LOOK_SECONDS = 6.0


class LocalProvider:
    """The machines that one cluster's file lists."""

    def __init__(
        self, spec: ClusterSpec, home: Path, clock: Clock, *, on_head: bool = False
    ) -> None:
        settings = spec.provider.settings
        self._clock = clock
        self._on_head = on_head
        self._head = str(settings["head_ip"])
        self._addresses = [self._head, *map(str, settings.get("worker_ips") or ())]
        self._owner = claims.owner(spec.cluster_name, self._head)
        self._spec = spec
        self._known_hosts = home / "hosts" / spec.cluster_name / "known_hosts"
        self.host_keys = SharedHostKeys(self._known_hosts)
        self._runners: dict[str, SshRunner] = {}
        self._picked: set[str] = set()
        self._taken: set[str] = set()  # by other clusters, as of the last look
        self._forget = cluster_secrets.forget_command(spec.cluster_name, self._head)
        # Where the head is known to have no way in any more.
        self._keyless: set[str] = set()
        self.troubles: dict[str, ShoalError] = {}
        # As of the last look. To pick machines by it is safe however old it is: only a claim on
        # the machine itself makes it the cluster's.
        self._seen: Sequence[Instance] | None = None

    async def check(self, spec: ClusterSpec) -> Sequence[Finding]:
        findings = []
        key = spec.auth.ssh_private_key
        if key is not None and not _is_file(key):
            findings.append(
                Finding(
                    "error",
                    f"the key {key} does not exist",
                    why="auth.ssh_private_key names it",
                    fix="correct the path, or leave it out to use your SSH agent and defaults",
                )
            )
        strangers = [a for a in spec.shoal.hosts if a not in self._addresses]
        for address in strangers:
            findings.append(
                Finding(
                    "error",
                    f"shoal.hosts has {address}, which is not among the cluster's machines",
                    fix="name it in provider.worker_ips, or take it out",
                )
            )
        return findings

    async def find(
        self, cluster: str | None = None, role: Role | None = None
    ) -> Sequence[Instance]:
        """Those machines of the list that are this cluster's, and those that do not say, as
        UNREACHABLE."""
        asked = [a for a in self._addresses if role in (None, self._role(a))]
        found = await run_all(self._look(a) for a in asked)
        instances = [instance for instance in found if instance is not None]
        if role is None:
            self._seen = instances
        return instances

    def presumed_head(self, spec: ClusterSpec) -> tuple[Instance, str]:
        return self._instance(self._head, State.RUNNING), claims.check_command(self._owner)

    async def create(
        self, spec: ClusterSpec, launches: Sequence[LaunchRequest]
    ) -> Sequence[Instance]:
        """Pick machines from the list. They become this cluster's when the bootstrap has reached
        and claimed them, so one that is down now may still come up."""
        seen = {i.id: i for i in (await self.find() if self._seen is None else self._seen)}
        mine = {id for id, i in seen.items() if i.state is State.RUNNING}
        # Machines that answer come first; the others are tried when they are needed. One that is
        # another cluster's comes last: whoever tries it is told whose it is.
        free = [a for a in self._addresses[1:] if a not in mine | self._picked]
        free.sort(key=lambda a: (a in self._taken, a in seen))
        if self._on_head:  # where nobody is told, and nobody could take it by force
            free = [a for a in free if a not in self._taken]
        picked = []
        for launch in launches:
            if launch.role == "head":
                picked.append(self._instance(self._head, State.PENDING))
                continue
            if launch.count > len(free) and not self._on_head:
                raise CapacityError(
                    f"{launch.count} more workers are wanted, and {len(free)} machines are free",
                    why=f"provider.worker_ips lists {len(self._addresses) - 1}",
                    fix="list more machines, or lower min_workers",
                )
            picked += [self._instance(a, State.PENDING) for a in free[: launch.count]]
            free = free[launch.count :]
        # One that was picked and is not claimed yet must not be picked for another wish.
        self._picked |= {i.id for i in picked}
        return picked

    async def halt(self, spec: ClusterSpec, instances: Sequence[Instance]) -> None:
        await self._on_each(
            instances, "stop Ray", lambda i: [self._if_ours(ssh_common.halting(spec, i))]
        )

    async def terminate(self, spec: ClusterSpec, instances: Sequence[Instance]) -> None:
        ended = {i.id for i in instances}
        self._picked -= ended
        # A worker that is only released lets the head in again when it is needed.
        ends = any(i.role == "head" for i in instances)
        if ends:  # first of all: on the head, the way to the others goes with it
            await self._shut_out_head([a for a in self._addresses if a not in ended])
        last = [*([self._forget] if ends else []), claims.release_command(self._owner)]
        await self._on_each(
            instances,
            "let go",
            lambda i: [*map(self._if_ours, (stop_command(i.id), cleanup_command(i))), *last],
        )
        if ends:
            self._keyless |= ended
        if self._seen is not None:
            self._seen = [i for i in self._seen if i.id not in ended]
        await run_all(self._runner(i.id).disconnect() for i in instances)

    async def introduce(self, given: Credentials) -> None:
        await self._where_possible(
            self._addresses[1:], lambda address: cluster_secrets.trust(self._runner(address), given)
        )

    def runner(self, spec: ClusterSpec, instance: Instance) -> Runner:
        return self._runner(instance.id)

    async def stop(self, spec: ClusterSpec, instances: Sequence[Instance]) -> Sequence[str]:
        await self.halt(spec, instances)
        return []

    async def start(self, spec: ClusterSpec, instances: Sequence[Instance]) -> Sequence[Instance]:
        return instances

    async def release(self, spec: ClusterSpec) -> Sequence[str]:
        # Also of machines that were never used, or whose head could not be ended with them.
        names = await self._shut_out_head([a for a in self._addresses if a not in self._keyless])
        return [f"the cluster's key on {', '.join(names)}"] if names else []

    def claim(self, spec: ClusterSpec, instance: Instance, *, force: bool) -> str:
        mine = claims.Claim(self._owner, instance.name, instance.id)
        return claims.claim_command(mine, force=force)

    def on_lapse(self, spec: ClusterSpec, instance: Instance) -> str:
        # Another cluster may want it, and the head takes it again when it is back.
        ends = "\n".join([remove_containers(spec.cluster_name), stop_command(instance.id)])
        return f"{self._if_ours(ends)}\n{claims.release_command(self._owner)}"

    def ray_start(self, spec: ClusterSpec, instance: Instance, head: Instance) -> RayStart:
        node_type = spec.node_types[instance.node_type]
        host = spec.shoal.hosts.get(instance.id, HostSpec())
        return ssh_common.user_ray_start(
            spec,
            instance,
            head,
            {**node_type.resources, **host.resources},
            {**node_type.labels, **host.labels},
        )

    async def _look(self, address: str) -> Instance | None:
        runner = self._runner(address)
        try:
            await runner.open_connection(timeout=_LOOK_SECONDS)
            _, printed = await capture(
                runner, claims.READ, timeout=_LOOK_SECONDS, skip_profile=True
            )
        except (ShoalError, TimeoutError) as error:
            self.troubles[address] = (
                error if isinstance(error, ShoalError) else SetupError("it does not answer")
            )
            return self._instance(address, State.UNREACHABLE)
        self.troubles.pop(address, None)
        claim = claims.parse(printed[0]) if printed else None
        if claim is not None and claim.owner == self._owner:
            return self._instance(address, State.RUNNING)
        if claim is not None:
            self._taken.add(address)
        else:
            self._taken.discard(address)
        return None

    def _instance(self, address: str, state: State) -> Instance:
        number = self._addresses.index(address)
        host = self._spec.shoal.hosts.get(address, HostSpec())
        external = self._spec.provider.settings.get("external_head_ip") if number == 0 else None
        return Instance(
            id=address,
            cluster=self._spec.cluster_name,
            name="head" if number == 0 else f"worker-{number}",
            node_type=self._spec.head_node_type,
            role=self._role(address),
            state=state,
            address=address,
            created_at=None,
            public_address=str(external or address),
            user=host.user or self._spec.auth.ssh_user,
            port=host.port,
        )

    def _if_ours(self, command: str) -> str:
        return claims.unless_anothers(self._owner, command)

    def _role(self, address: str) -> Role:
        return "head" if address == self._head else "worker"

    def _runner(self, address: str) -> SshRunner:
        if address not in self._runners:
            name = self._instance(address, State.RUNNING).name
            self._runners[address] = SshRunner(name, self._target(address), login_grace=0)
        return self._runners[address]

    def _target(self, address: str) -> SshTarget:
        spec = self._spec
        instance = self._instance(address, State.RUNNING)
        key = spec.auth.ssh_private_key
        outside = spec.provider.settings.get("external_head_ip")
        via_head = instance.role == "worker" and (spec.shoal.via_head or bool(outside))
        self._known_hosts.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return SshTarget(
            host=instance.public_address,
            user=instance.user,
            port=instance.port,
            key=Path(key).expanduser() if key is not None else None,
            proxy_command=None if via_head else spec.auth.ssh_proxy_command,
            jump=self._target(self._head) if via_head else None,
            known_hosts=self._known_hosts,
            host_key_alias=address,
            control_dir=control_directory(),
        )

    async def _shut_out_head(self, addresses: Sequence[str]) -> list[str]:
        """Take the cluster's key off those of these machines that answer. Returns the names of
        those that had it."""
        names = []

        async def forget(address: str) -> None:
            runner = self._runner(address)
            done, printed = await capture(
                runner, self._forget, timeout=_LOOK_SECONDS, skip_profile=True
            )
            if done.ok:
                self._keyless.add(address)
            if printed:
                names.append(runner.name)

        await self._where_possible(addresses, forget)
        return sorted(names)

    async def _where_possible(
        self, addresses: Sequence[str], action: Callable[[str], Awaitable[object]]
    ) -> None:
        """Do something on those of these machines that answer."""

        async def one(address: str) -> None:
            with contextlib.suppress(ShoalError, TimeoutError):
                await self._runner(address).connect(timeout=_LOOK_SECONDS)
                await action(address)

        await run_all(one(address) for address in addresses)

    async def _on_each(
        self, instances: Sequence[Instance], what: str, script: ssh_common.Script
    ) -> None:
        await ssh_common.on_each(instances, lambda i: self._runner(i.id), what, script)


def cleanup_command(instance: Instance) -> str:
    """A command that removes what a node has on its machine. A worker never has the cluster's key,
    unless it was refused because its home directory is the head's."""
    remove = "rm -rf .shoal"
    if instance.role == "worker":
        remove = f"{{ [ -e .shoal/cluster_key ] || {remove}; }}"
    return f"{remove_containers(instance.cluster)} && {remove}"


def _is_file(path: str) -> bool:
    return Path(path).expanduser().is_file()
