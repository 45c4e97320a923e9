"""The external provider: a node provider class of Ray's API, driven as a Shoal provider.

The class is constructed once on the head, where the controller sizes the cluster, and on a laptop
only to create, find and end the head. With `provider.head_ip` the head is a host that exists, and a
laptop never constructs the class.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import logging
import re
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from shoal.core.clock import Clock
from shoal.core.errors import CapacityError, ConfigError, ShoalError, TransientError
from shoal.core.events import Emit, LaunchAttempted
from shoal.core.logs import suppress_and_log
from shoal.core.node_phase import Role
from shoal.core.polling import PollUntilDeadline
from shoal.providers.external import ray_config
from shoal.providers.external.call_thread import CallTimeoutError
from shoal.providers.external.class_loading import load_class
from shoal.providers.external.command_runner import CommandRunnerAdapter
from shoal.providers.external.external_preflight import check_class, check_head_tags
from shoal.providers.external.head_config import HeadConfig
from shoal.providers.external.launch_records import LaunchRecord, LaunchRecords
from shoal.providers.external.launcher import Launcher, address_of
from shoal.providers.external.node_provider_driver import NodeProviderDriver, NodeView, role_of
from shoal.providers.host_claims import Claim
from shoal.providers.local.local_provider import LocalProvider
from shoal.providers.model import Finding, Instance, LaunchRequest, State, head_of
from shoal.providers.protocol import Capabilities, Provider
from shoal.remote.known_hosts import SharedHostKeys
from shoal.remote.runner import Runner
from shoal.remote.ssh_runner import SshRunner
from shoal.remote.ssh_target import SshTarget, control_directory
from shoal.spec.cluster_spec import ClusterSpec, ProviderSpec

_log = logging.getLogger(__name__)

_LIST_INTERVAL_S = 10.0
_BOOT_TIMEOUT_S = 900.0
_GONE_SECONDS = 300.0
_POLL_SECONDS = 2.0
_FILL_IN_PAUSES = (2.0, 5.0, 10.0)
_FINAL_STATUSES = ("up-to-date", "update-failed")
_MAX_NAME = 24
_ALIAS = re.compile(r"[A-Za-z0-9:][A-Za-z0-9._:-]*")
# Where `shoal up` puts the key with which a head logs in to the nodes that the class launches.
KEY_ON_HEAD = "~/.shoal/provider_key"

# The drivers of an event loop, by cluster, with what each was made from: a controller that applies
# a new config makes a new provider, and the class must not be constructed twice.
_drivers: weakref.WeakKeyDictionary[
    asyncio.AbstractEventLoop, dict[str, tuple[str, NodeProviderDriver]]
] = weakref.WeakKeyDictionary()


class ExternalProvider(Provider):
    """One cluster whose nodes a class launches. `_command_runners` are the class's own, by node
    id."""

    def __init__(
        self, spec: ClusterSpec, home: Path, clock: Clock, emit: Emit, *, on_head: bool
    ) -> None:
        directory = home / "external" / spec.cluster_name
        self._spec = spec
        self._clock = clock
        self._emit = emit
        self._on_head = on_head
        self._known_hosts = directory / "known_hosts"
        self._head_config = HeadConfig(directory / "head-config.json", spec)
        self._records = LaunchRecords(directory / "launches.json")
        self._launchers: dict[str, Launcher] = {}
        self._runners: dict[str, SshRunner] = {}
        self._command_runners: dict[str, CommandRunnerAdapter] = {}
        self._existing_head = _existing_head(spec, home, clock, on_head=on_head)

    @functools.cached_property
    def capabilities(self) -> Capabilities:
        head = self._existing_head
        fixed_head = None if head is None else head.capabilities.fixed_head
        return Capabilities(
            stops_instances=False,
            list_interval_s=_LIST_INTERVAL_S,
            boot_timeout_s=_BOOT_TIMEOUT_S,
            host_keys=SharedHostKeys(self._known_hosts) if head is None else _keys_of(head),
            head_spec=self._head_config.apply,
            head_key=self._key_for_head,
            fixed_head=fixed_head,
            claim=None if head is None else self._claim,
            controller_launches_workers=True,
            workers_start_ray=self._workers_start_ray,
            stops_ray_first=True,
            tag_status=self._tag_status,
        )

    @property
    def _workers_start_ray(self) -> bool:
        return bool(self._filled_in().provider.settings.get("disable_node_updaters"))

    async def preflight(self, spec: ClusterSpec) -> Sequence[Finding]:
        findings = check_class(spec)
        if self._existing_head is not None:
            return [*findings, *await self._existing_head.preflight(_head_spec(spec))]
        if any(finding.severity == "error" for finding in findings):
            return findings
        with suppress_and_log(_log, "list the nodes", ShoalError):  # the listing reports it
            heads = [v for v in await self._driver().list_nodes() if role_of(v) == "head"]
            findings += check_head_tags(heads)
        return findings

    async def launch(
        self, spec: ClusterSpec, requests: Sequence[LaunchRequest]
    ) -> Sequence[Instance]:
        launched: list[Instance] = []
        for request in requests:
            if request.role == "head" and self._existing_head is not None:
                launched += await self._existing_head.launch(spec, [request])
            else:
                launched += await self._launch(request)
        return launched

    async def list_instances(
        self, cluster: str | None = None, role: Role | None = None
    ) -> Sequence[Instance]:
        if cluster not in (None, self._spec.cluster_name):
            return []
        heads: list[Instance] = []
        if self._existing_head is not None and role != "worker":
            heads = list(await self._existing_head.list_instances(cluster, "head"))
        if self._existing_head is not None and (role == "head" or not self._on_head):
            return heads
        instances = self._instances(await self._driver().list_nodes())
        if self._existing_head is not None:
            instances = [*heads, *(i for i in instances if i.role == "worker")]
        elif not self._on_head and head_of(instances) and self._head_config.read() is None:
            await self._fill_in()  # another laptop launched the head
        return [i for i in instances if role in (None, i.role)]

    async def terminate(self, spec: ClusterSpec, instances: Sequence[Instance]) -> None:
        if self._existing_head is not None:
            existing = [i for i in instances if i.role == "head"]
            await self._existing_head.terminate(spec, existing)
            instances = [i for i in instances if i.role != "head"]
        ids = {i.id for i in instances}
        if not ids:
            return
        driver = self._driver()
        await driver.terminate(sorted(ids))
        left: set[str] = set()
        async for _ in PollUntilDeadline(self._clock, _GONE_SECONDS, _POLL_SECONDS):
            left = ids & {view.id for view in await driver.list_nodes()}
            if not left:
                break
        self._records.forget(ids - left)
        if left:
            raise TransientError(
                f"{len(left)} of {len(ids)} nodes still exist",
                why=f"{driver.class_name} still lists them {_GONE_SECONDS:.0f} s after the call to "
                "terminate them",
                fix="try again; if they stay, terminate them in the cloud's console",
            )

    def runner(self, spec: ClusterSpec, instance: Instance) -> Runner:
        if self._existing_head is not None and instance.role == "head":
            return self._existing_head.runner(spec, instance)
        if own := self._command_runners.get(instance.id):
            return own
        target = self._ssh_target(instance)
        runner = self._runners.get(instance.id)
        if runner is None or runner.target != target:
            runner = self._runners[instance.id] = SshRunner(instance.name, target)
        return runner

    async def _launch(self, request: LaunchRequest) -> list[Instance]:
        spec = await self._fill_in() if not self._on_head else self._spec
        driver = self._driver()
        launcher = self._launchers.setdefault(
            driver.class_name,
            Launcher(
                driver, self._records, self._clock, needs_addresses=not self._workers_start_ray
            ),
        )
        try:
            views = await launcher.launch(spec, request)
        except CapacityError as error:
            self._report(request, 0, str(error))
            raise
        if request.role == "head":
            config = ray_config.cluster_config(spec)
            self._head_config.write(await driver.prepare_for_head_node(config))
        missing = request.count - len(views)
        short = f"{driver.class_name} launched {len(views)} of {request.count}" if missing else ""
        self._report(request, len(views), short)
        return self._instances(views)

    def _report(self, request: LaunchRequest, launched: int, error: str) -> None:
        self._emit(
            LaunchAttempted(
                request.node_type,
                request.count,
                launched,
                request.node_type,
                "",
                self._spec.provider.type,
                error=error,
            )
        )

    async def _fill_in(self) -> ClusterSpec:
        """The spec with what the class fills in, done now unless it was done before. The class may
        create keys and networks for it."""
        if filled := self._head_config.read():
            return filled
        config = ray_config.cluster_config(self._spec)
        for pause in _FILL_IN_PAUSES:
            try:
                return self._head_config.write(await self._driver().bootstrap_config(config))
            except CallTimeoutError:
                raise
            except TransientError as error:  # what it has just created may not be visible yet
                _log.info("trying again in %.0f s: %s", pause, error)
                await self._clock.sleep(pause)
        return self._head_config.write(await self._driver().bootstrap_config(config))

    def _filled_in(self) -> ClusterSpec:
        """The spec with what the class has filled in, as far as it has."""
        return self._head_config.read() or self._spec

    def _driver(self) -> NodeProviderDriver:
        spec = self._spec if self._on_head else self._filled_in()
        config = ray_config.provider_config(spec)
        made_from = repr((config, self._on_head))
        drivers = _drivers.setdefault(asyncio.get_running_loop(), {})
        existing = drivers.get(spec.cluster_name)
        if existing is not None and existing[0] == made_from:
            return existing[1]
        if existing is not None:
            existing[1].close()
        auth = replace(spec.auth, ssh_private_key=_text(self._key()))
        driver = NodeProviderDriver(
            load_class(spec),
            config,
            spec.cluster_name,
            ray_config.auth_config(auth),
            self._clock,
            on_head=self._on_head,
        )
        drivers[spec.cluster_name] = (made_from, driver)
        return driver

    def _instances(self, views: Sequence[NodeView]) -> list[Instance]:
        owners, user = self._records.owners(), self._filled_in().auth.ssh_user
        return [self._instance(view, owners.get(view.id), user) for view in views]

    def _instance(self, view: NodeView, record: LaunchRecord | None, user: str) -> Instance:
        role = role_of(view) or (record.role if record else "worker")
        node_type = view.tags.get(ray_config.NODE_TYPE) or (record.node_type if record else "")
        address = address_of(view)
        is_reachable = bool(address) or (role == "worker" and self._workers_start_ray)
        if view.command_runner is not None:
            self._command_runners[view.id] = CommandRunnerAdapter(
                _name(view.id, role), view.command_runner, self._clock
            )
        return Instance(
            id=view.id,
            cluster=self._spec.cluster_name,
            name=_name(view.id, role),
            node_type=self._known_type(node_type, role),
            role=role,
            state=State.RUNNING if view.running and is_reachable else State.PENDING,
            address=address,
            created_at=record.at if record else None,
            public_address=view.external_ip,
            user=user,
            tags=view.tags,
        )

    def _known_type(self, node_type: str, role: Role) -> str:
        """The node type of a node that may have lost its tag."""
        if node_type in self._spec.node_types:
            return node_type
        if role == "head":
            return self._spec.head_node_type
        workers = [name for name, t in self._spec.node_types.items() if t.max_workers]
        return workers[0] if not node_type and len(workers) == 1 else node_type

    def _claim(self, instance: Instance) -> Claim | None:
        head = self._existing_head
        if head is None or head.capabilities.claim is None or instance.role != "head":
            return None
        return head.capabilities.claim(instance)

    async def _tag_status(self, tags: Mapping[str, str]) -> None:
        """Only the last status of a node: some clouds take seconds to write a tag."""
        final = {
            id: {ray_config.STATUS: status}
            for id, status in tags.items()
            if status in _FINAL_STATUSES and not self._is_existing_head(id)
        }
        if final and (self._on_head or self._existing_head is None):
            await self._driver().set_tags(final)

    def _is_existing_head(self, id: str) -> bool:
        head = self._existing_head
        fixed = head.capabilities.fixed_head if head is not None else None
        return fixed is not None and fixed.id == id

    def _private_key(self) -> Path | None:
        """The key that `auth` names on this machine, once the class has filled it in."""
        key = self._filled_in().auth.ssh_private_key
        return None if key is None else Path(key).expanduser()

    def _key_for_head(self) -> bytes | None:
        key = self._private_key()
        return key.read_bytes() if key is not None and key.exists() else None

    def _key(self) -> Path | None:
        """The key with which this machine logs in to nodes."""
        if self._on_head and (given := Path(KEY_ON_HEAD).expanduser()).exists():
            return given
        return self._private_key()

    def _ssh_target(self, instance: Instance) -> SshTarget:
        self._known_hosts.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        uses_public = not self._on_head and not self._spec.provider.settings.get("use_internal_ips")
        host = (instance.public_address if uses_public else "") or instance.address
        if not host:
            raise ConfigError(
                f"{instance.name} has no address",
                why="its node provider reports none yet",
                fix="try again in a minute",
            )
        return SshTarget(
            host=host,
            user=instance.user,
            key=self._key(),
            proxy_command=self._spec.auth.ssh_proxy_command,
            known_hosts=self._known_hosts,
            host_key_alias=_alias(instance.id),
            control_dir=control_directory(),
        )


def _existing_head(
    spec: ClusterSpec, home: Path, clock: Clock, *, on_head: bool
) -> LocalProvider | None:
    """The head as a host that exists, if the file names one."""
    if not spec.provider.settings.get("head_ip"):
        return None
    return LocalProvider(_head_spec(spec), home, clock, on_head=on_head)


def _head_spec(spec: ClusterSpec) -> ClusterSpec:
    """The spec of a cluster that consists of the head only."""
    settings = spec.provider.settings
    kept = {key: settings[key] for key in ("head_ip", "external_head_ip") if settings.get(key)}
    hosts = {host: s for host, s in spec.shoal.hosts.items() if host == settings["head_ip"]}
    return replace(
        spec, provider=ProviderSpec("local", kept), shoal=replace(spec.shoal, hosts=hosts)
    )


def _keys_of(head: LocalProvider) -> SharedHostKeys | None:
    keys = head.capabilities.host_keys
    return keys if isinstance(keys, SharedHostKeys) else None


def _name(id: str, role: Role) -> str:
    if role == "head":
        return "head"
    safe = re.sub(r"[^A-Za-z0-9.-]", "-", id)
    if len(safe) > _MAX_NAME or safe != id:
        safe = hashlib.sha256(id.encode()).hexdigest()[:8]
    return f"worker-{safe}"


def _alias(id: str) -> str:
    return id if _ALIAS.fullmatch(id) else hashlib.sha256(id.encode()).hexdigest()[:16]


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
