"""Launches nodes through a class that has no idempotency token, and finds out which they are."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from shoal.core.clock import Clock
from shoal.core.errors import CapacityError, ShoalError, TransientError
from shoal.core.polling import PollUntilDeadline
from shoal.providers.external import ray_config
from shoal.providers.external.call_thread import CallTimeoutError
from shoal.providers.external.launch_records import LaunchRecord, LaunchRecords
from shoal.providers.external.node_provider_driver import NodeProviderDriver, NodeView, role_of
from shoal.providers.model import LaunchRequest
from shoal.spec.cluster_spec import ClusterSpec

_log = logging.getLogger(__name__)

# How long the class may answer that it is not safe to scale.
_UNSAFE_SECONDS = 120.0
# How long a listing may lag behind a create call that returned no ids, or that was interrupted.
_LAG_SECONDS = 30.0
# How long a new node may be without an address.
_ADDRESS_SECONDS = 400.0
_POLL_SECONDS = 1.0
# An interrupted launch of a head is looked for if it is not older than this.
_UNFINISHED_SECONDS = 600.0


class Launcher:
    """Launches through one driver. A launch is repeated under its own lock, so that two with the
    same token launch once. Nodes that start Ray themselves need no address."""

    def __init__(
        self,
        driver: NodeProviderDriver,
        records: LaunchRecords,
        clock: Clock,
        *,
        needs_addresses: bool,
    ) -> None:
        self._driver = driver
        self._needs_addresses = needs_addresses
        self._records = records
        self._clock = clock
        self._locks: dict[str, asyncio.Lock] = {}

    async def launch(self, spec: ClusterSpec, request: LaunchRequest) -> list[NodeView]:
        """The nodes of a request, with addresses; fewer than requested if there are no more."""
        async with self._locks.setdefault(request.token, asyncio.Lock()):
            record = self._records.read(request.token)
            if record is None and request.role == "head":
                since = self._clock.now() - _UNFINISHED_SECONDS
                record = self._records.unfinished("head", since)
            if record is None:
                record = LaunchRecord(
                    request.token, request.node_type, request.role, request.count, self._clock.now()
                )
            else:
                nodes = await self._wait_for(record, _LAG_SECONDS)
                if record.returned or len(nodes) >= record.count:
                    return await self._with_addresses(record, nodes)
                record = replace(record, ids=tuple(n.id for n in nodes))
            record = await self._create(spec, record)
            seconds = _LAG_SECONDS if not record.ids else _ADDRESS_SECONDS
            return await self._with_addresses(record, await self._wait_for(record, seconds))

    async def _create(self, spec: ClusterSpec, record: LaunchRecord) -> LaunchRecord:
        node_type = spec.node_types[record.node_type]
        missing = record.count - len(record.ids)
        tags = ray_config.launch_tags(spec, record.node_type, record.role, record.token)

        def begin(known: tuple[str, ...]) -> None:
            nonlocal record
            known = tuple(id for id in known if id not in record.ids)
            record = replace(record, known=known)
            self._records.write(record)

        async for _ in PollUntilDeadline(self._clock, _UNSAFE_SECONDS, _POLL_SECONDS):
            try:
                creation = await self._driver.create(
                    node_type.node_config,
                    tags,
                    missing,
                    node_type.resources,
                    node_type.labels,
                    begin,
                )
            except CallTimeoutError:
                raise  # it may still create them
            except ShoalError:
                self._records.write(replace(record, returned=True))
                raise
            if creation is not None:
                ids = () if creation.ids is None else (*record.ids, *creation.ids)
                record = replace(record, ids=ids, returned=True)
                self._records.write(record)
                return record
        raise TransientError(
            f"{self._driver.class_name} does not allow scaling now",
            why=f"its safe_to_scale has returned False for {_UNSAFE_SECONDS:.0f} s",
            fix="try again when the changes that it waits for are done",
        )

    async def _wait_for(self, record: LaunchRecord, seconds: float) -> list[NodeView]:
        """The nodes of a launch, when as many are listed as it needs or it takes too long."""
        nodes: list[NodeView] = []
        wanted = len(record.ids) if record.returned and record.ids else record.count
        async for _ in PollUntilDeadline(self._clock, seconds, _POLL_SECONDS):
            nodes = self._nodes_of(record, await self._driver.list_nodes())
            if len(nodes) >= wanted:
                break
        if nodes:
            self._records.write(replace(record, ids=tuple(node.id for node in nodes)))
        return nodes

    def _nodes_of(self, record: LaunchRecord, listed: Sequence[NodeView]) -> list[NodeView]:
        """The nodes that a launch created: by the ids that the class returned, by the tag, or,
        where tags are lost, those that are new and of its kind."""
        if record.returned and record.ids:
            return [node for node in listed if node.id in record.ids]
        tagged = [node for node in listed if node.tags.get(ray_config.TOKEN) == record.token]
        if tagged:
            return tagged
        owners = self._records.owners()
        new = [
            node
            for node in listed
            if node.id not in record.known
            and owners.get(node.id, record).token == record.token
            and ray_config.TOKEN not in node.tags
            and role_of(node) in (record.role, None)
            and node.tags.get(ray_config.NODE_TYPE, record.node_type) == record.node_type
        ]
        return new[: record.count]

    async def _with_addresses(
        self, record: LaunchRecord, nodes: Sequence[NodeView]
    ) -> list[NodeView]:
        """The nodes once they have addresses. One that gets none in time is left out: it is adopted
        when it has one."""
        ids = {node.id for node in nodes}
        is_ready = self._is_ready if record.role == "worker" else address_of
        ready: list[NodeView] = [node for node in nodes if is_ready(node)]
        if len(ready) < len(ids):
            async for _ in PollUntilDeadline(self._clock, _ADDRESS_SECONDS, _POLL_SECONDS):
                listed = [n for n in await self._driver.list_nodes() if n.id in ids]
                ready = [node for node in listed if is_ready(node)]
                if len(ready) >= len(listed):
                    break
        if not ready:
            raise CapacityError(
                f"{self._driver.class_name} launched none of {record.count} {record.node_type}",
                why="its create call returned, and it lists no new node with an address",
                fix="look into the cloud's console, and the class's own log",
            )
        return ready

    def _is_ready(self, node: NodeView) -> bool:
        return not self._needs_addresses or bool(address_of(node))


def address_of(node: NodeView) -> str:
    """Where the cluster reaches a node."""
    return node.internal_ip or node.external_ip
