"""The local provider: hosts that a cluster file lists, used over SSH.

It launches and terminates nothing: `launch` picks hosts from the list. Which hosts belong to the
cluster is written on each host as a claim, so no file on the caller's side is needed.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from pathlib import Path

from shoal.core.clock import Clock
from shoal.core.concurrency import run_all
from shoal.core.errors import CapacityError, ConfigError, SetupError, ShoalError
from shoal.core.node_phase import Role
from shoal.providers import host_claims
from shoal.providers.host_claims import Claim
from shoal.providers.local import host_resources
from shoal.providers.model import Finding, Instance, LaunchRequest, State
from shoal.providers.protocol import Capabilities, Provider
from shoal.remote import head_connections
from shoal.remote.known_hosts import SharedHostKeys
from shoal.remote.private_key import private_key_problem
from shoal.remote.runner import Runner, capture
from shoal.remote.ssh_errors import HostKeyChangedError, LoginDeniedError
from shoal.remote.ssh_runner import SshRunner
from shoal.remote.ssh_target import SshTarget, control_directory
from shoal.spec.cluster_spec import ClusterSpec, HostSpec

_log = logging.getLogger(__name__)

# How long a host may take to answer while hosts are listed.
_LIST_SECONDS = 6.0
# These do not go away by waiting.
_PERMANENT_ERRORS = (ConfigError, HostKeyChangedError, LoginDeniedError)
# These hosts are up already; instances that boot get more time.
_BOOT_TIMEOUT_S = 60.0


class LocalProvider(Provider):
    """The hosts that one cluster file lists. A host is known by its address.

    `_launched` are hosts that `launch` has picked and bootstrap may not have claimed yet;
    `_claimed_by_others` are those that the last listing found to be another cluster's, with the
    error for it; `_listed`
    is that listing, None before the first. `launch` may pick from an old listing, because only
    the claim on the host decides whose it is. `_resources` are what Ray would detect on each host;
    only the head needs to know, and reads it once while it lists the hosts.
    """

    def __init__(
        self, spec: ClusterSpec, home: Path, clock: Clock, *, on_head: bool = False
    ) -> None:
        settings = spec.provider.settings
        self._on_head = on_head
        self._head_address = str(settings["head_ip"])
        self._addresses = [self._head_address, *map(str, settings.get("worker_ips") or ())]
        self._owner = host_claims.owner_name(spec.cluster_name, self._head_address)
        self._spec = spec
        self._known_hosts = home / "hosts" / spec.cluster_name / "known_hosts"
        self._runners: dict[str, SshRunner] = {}
        self._launched: set[str] = set()
        self._claimed_by_others: dict[str, ShoalError] = {}
        self._unreachable_reasons: dict[str, ShoalError] = {}
        self._listed: Sequence[Instance] | None = None
        self._resources: dict[str, dict[str, float]] = {}

    @functools.cached_property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            costs_money=False,
            stops_instances=False,
            terminates_in_batches=False,
            boot_timeout_s=_BOOT_TIMEOUT_S,
            hosts=lambda: [self._instance(a, State.RUNNING) for a in self._addresses],
            claim=lambda instance: Claim(self._owner, instance.name, instance.id),
            fixed_head=self._instance(self._head_address, State.RUNNING),
            unreachable_reasons=lambda: self._unreachable_reasons,
            unusable_hosts=self._unusable_hosts,
            host_resources=lambda: self._resources,
            host_keys=SharedHostKeys(self._known_hosts),
        )

    async def preflight(self, spec: ClusterSpec) -> Sequence[Finding]:
        findings = []
        key = self._private_key()
        problem = None if key is None else private_key_problem(key)
        if problem is not None:
            at = ("auth", "ssh_private_key")
            findings.append(Finding("error", problem.what, problem.why, problem.fix, at=at))
        findings += [
            Finding(
                "error",
                f"shoal.hosts has {address}, which is not a host of the cluster",
                fix="add it to provider.worker_ips, or remove it from shoal.hosts",
            )
            for address in spec.shoal.hosts
            if address not in self._addresses
        ]
        return findings

    async def list_instances(
        self, cluster: str | None = None, role: Role | None = None
    ) -> Sequence[Instance]:
        """The listed hosts that this cluster has claimed, and, as UNREACHABLE, those that do not
        answer."""
        addresses = [a for a in self._addresses if role in (None, self._role(a))]
        results = await run_all(self._read_claim(a) for a in addresses)
        instances = [instance for instance in results if instance is not None]
        if role is None:
            self._listed = instances
        return instances

    async def launch(
        self, spec: ClusterSpec, requests: Sequence[LaunchRequest]
    ) -> Sequence[Instance]:
        """Pick hosts from the list. A host becomes this cluster's when bootstrap has reached and
        claimed it, so one that is down now may still become a node."""
        listed = await self.list_instances() if self._listed is None else self._listed
        free = self._free_workers({i.id: i for i in listed})
        launched = []
        for request in requests:
            if request.role == "head":
                launched.append(self._instance(self._head_address, State.PENDING))
                continue
            if request.count > len(free) and not self._on_head:
                raise CapacityError(
                    f"{request.count} more workers are needed, but only {len(free)} hosts are free",
                    why=f"provider.worker_ips lists {len(self._addresses) - 1}",
                    fix="list more hosts, or lower min_workers",
                )
            suitable = [a for a in free if not request.hosts or a in request.hosts]
            picked = suitable[: request.count]
            launched += [self._instance(a, State.PENDING) for a in picked]
            free = [a for a in free if a not in picked]
        # A host that is not claimed yet must not be picked for another request.
        self._launched |= {i.id for i in launched}
        _log.info("picked hosts %s", ", ".join(i.id for i in launched))
        return launched

    async def terminate(self, spec: ClusterSpec, instances: Sequence[Instance]) -> None:
        """Make hosts available again. Bootstrap has removed the cluster and its claim from them."""
        ids = {i.id for i in instances}
        self._launched -= ids
        if self._listed is not None:
            self._listed = [i for i in self._listed if i.id not in ids]
        await run_all(self._runner(id).disconnect() for id in ids)

    def runner(self, spec: ClusterSpec, instance: Instance) -> Runner:
        return self._runner(instance.id)

    def _free_workers(self, listed: dict[str, Instance]) -> list[str]:
        """The addresses that a worker may use, those that answer first. On the head, hosts of
        other clusters are left out; elsewhere they come last, and the user sees whose they are
        when bootstrap cannot claim them."""
        in_use = {id for id, i in listed.items() if i.state is State.RUNNING} | self._launched
        free = [a for a in self._addresses[1:] if a not in in_use]
        if self._on_head:
            free = [a for a in free if a not in self._claimed_by_others]
        return sorted(free, key=lambda a: (a in self._claimed_by_others, a in listed))

    async def _read_claim(self, address: str) -> Instance | None:
        """The instance at an address; None if it is free or another cluster's."""
        runner = self._runner(address)
        try:
            await runner.open_connection(timeout=_LIST_SECONDS)
            command = host_claims.READ_COMMAND
            if self._on_head and address not in self._resources:
                command += f"; {host_resources.read_command()}"
            if self._on_head:
                command += f"; {head_connections.note_command(self._owner)}"
            _, lines = await capture(runner, command, timeout=_LIST_SECONDS, skip_profile=True)
        except (ShoalError, TimeoutError) as error:
            _log.info("host %s is unreachable: %s", address, error)
            self._unreachable_reasons[address] = (
                error if isinstance(error, ShoalError) else SetupError("it does not answer")
            )
            self._resources.pop(address, None)  # it may be another machine when it is back
            return self._instance(address, State.UNREACHABLE)
        self._unreachable_reasons.pop(address, None)
        if (resources := host_resources.parse(lines)) is not None:
            _log.info("host %s has %s", address, resources)
            self._resources[address] = resources
        lines = host_resources.other_lines(lines)
        claim = host_claims.parse(lines[0]) if lines else None
        if claim is not None and claim.owner == self._owner:
            return self._instance(address, State.RUNNING)
        if claim is not None:
            name = self._instance(address, State.RUNNING).name
            owner = "another cluster" if claim.owner == "?" else f"cluster {claim.owner}"
            self._claimed_by_others[address] = host_claims.claimed_error(owner, name)
        else:
            self._claimed_by_others.pop(address, None)
        return None

    def _unusable_hosts(self) -> dict[str, ShoalError]:
        refused = {
            address: error
            for address, error in self._unreachable_reasons.items()
            if isinstance(error, _PERMANENT_ERRORS)
        }
        return {**self._claimed_by_others, **refused}

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

    def _role(self, address: str) -> Role:
        return "head" if address == self._head_address else "worker"

    def _runner(self, address: str) -> SshRunner:
        if address not in self._runners:
            name = self._instance(address, State.RUNNING).name
            self._runners[address] = SshRunner(name, self._ssh_target(address), login_grace=0)
        return self._runners[address]

    def _private_key(self) -> Path | None:
        key = self._spec.auth.ssh_private_key
        return None if key is None else Path(key).expanduser()

    def _ssh_target(self, address: str) -> SshTarget:
        spec = self._spec
        instance = self._instance(address, State.RUNNING)
        external = spec.provider.settings.get("external_head_ip")
        via_head = instance.role == "worker" and (spec.shoal.via_head or bool(external))
        self._known_hosts.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return SshTarget(
            host=instance.public_address,
            user=instance.user,
            port=instance.port,
            key=self._private_key(),
            proxy_command=None if via_head else spec.auth.ssh_proxy_command,
            jump=self._ssh_target(self._head_address) if via_head else None,
            known_hosts=self._known_hosts,
            host_key_alias=address,
            control_dir=control_directory(self._owner if self._on_head else ""),
        )
