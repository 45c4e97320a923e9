"""Drives one instance of a node provider class, in the order in which Ray calls it: list,
`safe_to_scale`, create or terminate, `post_process`. Each such sequence is one call in the class's
thread, so nothing lists in between: a class that batches would forget what was requested.
"""

from __future__ import annotations

import copy
import logging
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from shoal.core.clock import Clock
from shoal.core.errors import ShoalError
from shoal.core.node_phase import Role
from shoal.providers.external import ray_config
from shoal.providers.external.call_thread import CallThread
from shoal.providers.external.launch_errors import error_for

_log = logging.getLogger(__name__)

T = TypeVar("T")

_CONSTRUCT_SECONDS = 180.0
_LIST_SECONDS = 100.0
# The controller waits 600 s for a launch.
_CREATE_SECONDS = 480.0
_TERMINATE_SECONDS = 300.0
_TAG_SECONDS = 60.0
_BOOTSTRAP_SECONDS = 300.0

_STOCK_RUNNERS = ("SSHCommandRunner", "DockerCommandRunner")
_STOCK_RUNNER_MODULE = "ray.autoscaler._private.command_runner"
_STOCK_PROVIDER_MODULE = "ray.autoscaler.node_provider"


@dataclass(frozen=True)
class NodeView:
    """A node as the class reports it. Addresses are empty where the class does not know them.
    `command_runner` is the class's own way to run commands on it, None for SSH."""

    id: str
    running: bool
    tags: Mapping[str, str] = field(default_factory=dict)
    internal_ip: str = ""
    external_ip: str = ""
    command_runner: Any = None


@dataclass(frozen=True)
class Creation:
    """What a create call has done: the nodes that existed before, and the ids that it returned;
    None if it returned none."""

    known: tuple[str, ...]
    ids: tuple[str, ...] | None


class NodeProviderDriver:
    """One instance of a class, constructed with the first call. `auth_config` is for the class's
    own command runners."""

    def __init__(
        self,
        node_provider_class: type[Any],
        provider_config: Mapping[str, Any],
        cluster_name: str,
        auth_config: Mapping[str, Any],
        clock: Clock,
        *,
        on_head: bool,
    ) -> None:
        self._class = node_provider_class
        self._provider_config = provider_config
        self._cluster_name = cluster_name
        self._auth_config = auth_config
        self._clock = clock
        self._on_head = on_head
        self._thread = self._new_thread()
        self._instance: Any = None

    @property
    def class_name(self) -> str:
        return self._class.__name__

    @property
    def has_own_runners(self) -> bool:
        """Whether the class overrides how commands are run."""
        defining = next(
            (c for c in self._class.__mro__ if "get_command_runner" in vars(c)), self._class
        )
        overrides = "get_command_runner" in vars(defining)
        return overrides and defining.__module__ != _STOCK_PROVIDER_MODULE

    async def bootstrap_config(self, config: dict[str, Any]) -> dict[str, Any]:
        """The cluster config with what the class fills in: resources, keys, networks."""

        def bootstrap() -> dict[str, Any]:
            filled = copy.deepcopy(config)
            for name in ("fillout_available_node_types_resources", "bootstrap_config"):
                method = getattr(self._class, name, None)
                filled = (method(filled) if method is not None else None) or filled
            return filled

        return await self._call("bootstrap_config", bootstrap, _BOOTSTRAP_SECONDS)

    async def prepare_for_head_node(self, config: dict[str, Any]) -> dict[str, Any]:
        """The cluster config for the head, after the head was created."""

        def prepare() -> dict[str, Any]:
            method = getattr(self._constructed(), "prepare_for_head_node", None)
            return (method(copy.deepcopy(config)) if method is not None else None) or config

        return await self._call("prepare_for_head_node", prepare, _BOOTSTRAP_SECONDS)

    async def list_nodes(self) -> list[NodeView]:
        """All nodes that are not terminated."""
        return await self._call("non_terminated_nodes", self._list, _LIST_SECONDS)

    async def create(
        self,
        node_config: Mapping[str, Any],
        tags: Mapping[str, str],
        count: int,
        resources: Mapping[str, float],
        labels: Mapping[str, str],
        on_begin: Callable[[tuple[str, ...]], None],
    ) -> Creation | None:
        """Create nodes; None if the class says that it is not safe to scale now. `on_begin` gets
        the nodes that exist, before the call."""

        def create() -> Creation | None:
            provider = self._constructed()
            known = tuple(map(str, provider.non_terminated_nodes({})))
            if not _is_safe_to_scale(provider):
                return None
            on_begin(known)
            arguments = (copy.deepcopy(dict(node_config)), dict(tags), count)
            with_resources = getattr(provider, "create_node_with_resources_and_labels", None)
            if tags[ray_config.KIND] == "head" or with_resources is None:
                created = provider.create_node(*arguments)
            else:
                created = with_resources(*arguments, _whole_numbers(resources), dict(labels))
            _post_process(provider)
            return Creation(known, tuple(map(str, created)) if created else None)

        return await self._call("create_node", create, _CREATE_SECONDS)

    async def terminate(self, ids: Sequence[str]) -> None:
        """Terminate the nodes that still exist."""

        def terminate() -> None:
            provider = self._constructed()
            existing = set(map(str, provider.non_terminated_nodes({})))
            chosen = [id for id in ids if id in existing]
            size = getattr(provider, "max_terminate_nodes", None) or len(chosen) or 1
            for start in range(0, len(chosen), size):
                batch = chosen[start : start + size]
                if hasattr(provider, "terminate_nodes"):
                    provider.terminate_nodes(batch)
                else:
                    for id in batch:
                        provider.terminate_node(id)
            _post_process(provider)

        await self._call("terminate_nodes", terminate, _TERMINATE_SECONDS)

    async def set_tags(self, tags: Mapping[str, Mapping[str, str]]) -> None:
        """Set tags of nodes, by id."""

        def set_tags() -> None:
            for id, node_tags in tags.items():
                self._constructed().set_node_tags(id, dict(node_tags))

        await self._call("set_node_tags", set_tags, _TAG_SECONDS)

    def close(self) -> None:
        """Let go of the instance, which may have threads of its own."""
        close, self._instance = getattr(self._instance, "close", None), None
        self._thread.close(close if callable(close) else None)

    async def _call(self, what: str, function: Callable[[], T], timeout: float) -> T:
        if self._thread.is_abandoned:
            _log.warning("giving up on a call of %s; constructing it again", self.class_name)
            self._thread, self._instance = self._new_thread(), None
        name = f"{self.class_name}.{what}"
        if self._instance is None and what != "bootstrap_config":
            await self._guarded(f"{self.class_name}()", self._construct, _CONSTRUCT_SECONDS)
        return await self._guarded(name, function, timeout)

    async def _guarded(self, name: str, function: Callable[[], T], timeout: float) -> T:
        try:
            return await self._thread.call(name, function, timeout)
        except ShoalError:
            raise
        except (Exception, SystemExit) as error:
            _log.debug("%s failed", name, exc_info=error)
            raise error_for(error, f"{name} failed") from error

    def _new_thread(self) -> CallThread:
        return CallThread(f"node-provider-{self._cluster_name}", self._clock)

    def _construct(self) -> None:
        if self._instance is None:
            config = copy.deepcopy(dict(self._provider_config))
            self._instance = self._class(config, self._cluster_name)

    def _constructed(self) -> Any:
        if self._instance is None:  # given up meanwhile
            self._construct()
        return self._instance

    def _list(self) -> list[NodeView]:
        provider = self._constructed()
        return [self._view(provider, str(id)) for id in provider.non_terminated_nodes({}) or ()]

    def _view(self, provider: Any, id: str) -> NodeView:
        """A node's properties. It may disappear while they are read."""
        tags = _read(provider, "node_tags", id) or {}
        return NodeView(
            id=id,
            running=bool(_read(provider, "is_running", id)),
            tags={str(key): str(value) for key, value in dict(tags).items()},
            internal_ip=str(_read(provider, "internal_ip", id) or ""),
            external_ip=str(_read(provider, "external_ip", id) or ""),
            command_runner=self._own_runner(provider, id) if self.has_own_runners else None,
        )

    def _own_runner(self, provider: Any, id: str) -> Any:
        """The class's own command runner for a node; None if it returns Ray's."""
        try:
            runner = provider.get_command_runner(
                log_prefix=f"{id}: ",
                node_id=id,
                auth_config=dict(self._auth_config),
                cluster_name=self._cluster_name,
                process_runner=subprocess,
                use_internal_ip=self._on_head,
                docker_config=None,
            )
        except Exception as error:
            _log.info("%s has no command runner for %s: %s", self.class_name, id, error)
            return None
        kind = type(runner)
        is_stock = kind.__module__ == _STOCK_RUNNER_MODULE and kind.__name__ in _STOCK_RUNNERS
        return None if is_stock else runner


def role_of(view: NodeView) -> Role | None:
    """The role that a node's tags say."""
    kind = view.tags.get(ray_config.KIND)
    if kind == "head":
        return "head"
    return "worker" if kind == "worker" else None


def _whole_numbers(resources: Mapping[str, float]) -> dict[str, float]:
    """The resources as they are in a cluster file: classes compare them with integers."""
    return {name: int(n) if n == int(n) else n for name, n in resources.items()}


def _is_safe_to_scale(provider: Any) -> bool:
    method = getattr(provider, "safe_to_scale", None)
    return method is None or bool(method())


def _post_process(provider: Any) -> None:
    method = getattr(provider, "post_process", None)
    if method is not None:
        method()


def _read(provider: Any, method: str, id: str) -> Any:
    try:
        return getattr(provider, method)(id)
    except Exception as error:  # a stale cache, or a class that does not implement it
        _log.debug("%s of %s: %s", method, id, error)
        return None
