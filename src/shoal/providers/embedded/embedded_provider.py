"""The embedded provider: instances are directories, loopback addresses and processes on this
machine. Launching one costs nothing; terminating one ends its processes and removes its directory.
What runs on an instance is not this module's business.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import itertools
import logging
import os
import secrets
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from shoal.core.clock import Clock
from shoal.core.errors import CapacityError
from shoal.core.node_phase import Role
from shoal.providers.embedded import processes
from shoal.providers.embedded.instance_store import (
    InstanceRecord,
    InstanceStore,
    free_addresses,
    new_id,
)
from shoal.providers.model import Finding, Instance, LaunchRequest, SharedMachine, State
from shoal.providers.protocol import Capabilities, Provider
from shoal.remote.local_runner import LocalRunner
from shoal.spec.cluster_spec import ClusterSpec

_log = logging.getLogger(__name__)

_PORTS_PER_HEAD = 5
_LOWEST_PORT = 20000
_HIGHEST_PORT = 32000
# A listing reads a few small files.
_LIST_INTERVAL_S = 2.0

# Tags of an instance.
_RAY_DIRECTORY = "ray-directory"
_FIRST_PORT = "first-port"


class EmbeddedProvider(Provider):
    """All embedded instances of this user, whichever command launched them."""

    def __init__(self, root: Path, clock: Clock) -> None:
        self._store = InstanceStore(root)
        self._clock = clock

    @functools.cached_property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            costs_money=False,
            stops_instances=False,
            terminates_in_batches=False,
            list_interval_s=_LIST_INTERVAL_S,
            shared_machine=self._shared_machine,
            end_processes=self._end_processes,
        )

    async def preflight(self, spec: ClusterSpec) -> Sequence[Finding]:
        return [f for f in (_find_missing_ray(), _find_unusable_loopback()) if f is not None]

    async def launch(
        self, spec: ClusterSpec, requests: Sequence[LaunchRequest]
    ) -> Sequence[Instance]:
        return await asyncio.to_thread(self._launch, spec, requests)

    async def list_instances(
        self, cluster: str | None = None, role: Role | None = None
    ) -> Sequence[Instance]:
        return [
            _instance(r)
            for r in self._store.records()
            if cluster in (None, r.cluster) and role in (None, r.role)
        ]

    async def terminate(self, spec: ClusterSpec, instances: Sequence[Instance]) -> None:
        await processes.end({i.id for i in instances}, self._clock)
        await asyncio.to_thread(self._remove, {i.id for i in instances})

    def runner(self, spec: ClusterSpec, instance: Instance) -> LocalRunner:
        directory = self._store.directory(instance.id)
        # Commands must find the Python that runs Shoal first: that one has Ray.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        return LocalRunner(
            directory,
            {
                **processes.process_environment(instance.id),
                "PATH": path,
                "TMPDIR": str(Path(instance.tags[_RAY_DIRECTORY], "tmp")),
            },
            instance.address,
        )

    def _shared_machine(self, instance: Instance) -> SharedMachine:
        first_port = int(instance.tags[_FIRST_PORT])
        return SharedMachine(
            python=sys.executable,
            ray_directory=instance.tags[_RAY_DIRECTORY],
            token_path=str(self._store.token_path(instance.id)),
            ports=range(first_port, first_port + _PORTS_PER_HEAD),
        )

    async def _end_processes(self, instances: Sequence[Instance]) -> None:
        # Another command may be talking to the controller at this moment.
        await processes.end({i.id for i in instances}, self._clock, with_commands=False)

    def _launch(self, spec: ClusterSpec, requests: Sequence[LaunchRequest]) -> list[Instance]:
        with self._store.lock():
            self._store.sweep()
            records = self._store.records()
            cluster_records = [r for r in records if r.cluster == spec.cluster_name]
            addresses = free_addresses(records, spec.cluster_name)
            numbers = _free_worker_numbers(cluster_records)
            launched: list[InstanceRecord] = []
            for request in requests:
                existing = [r for r in cluster_records if r.token == request.token]
                launched += existing
                # Stops early when the cluster has no free address left.
                for address in itertools.islice(addresses, request.count - len(existing)):
                    id = new_id()
                    record = InstanceRecord(
                        id=id,
                        cluster=spec.cluster_name,
                        name="head" if request.role == "head" else f"worker-{next(numbers)}",
                        node_type=request.node_type,
                        role=request.role,
                        address=address,
                        created_at=self._clock.now(),
                        token=request.token,
                        ray_directory=self._store.ray_directory(id),
                        first_port=_free_ports(records) if request.role == "head" else 0,
                    )
                    self._store.add(record)
                    launched.append(record)
        if requests and not launched:
            raise CapacityError(
                f"cluster {spec.cluster_name} cannot have more instances on this machine",
                why="each instance needs a loopback address, and the cluster has used all of its "
                "addresses",
                fix="lower max_workers, or give the nodes more CPUs each",
            )
        _log.info("launched %s", ", ".join(f"{r.name} ({r.address})" for r in launched))
        return [_instance(r) for r in launched]

    def _remove(self, ids: set[str]) -> None:
        with self._store.lock():
            for record in self._store.records():
                if record.id in ids:
                    self._store.remove(record)


def _instance(record: InstanceRecord) -> Instance:
    return Instance(
        id=record.id,
        cluster=record.cluster,
        name=record.name,
        node_type=record.node_type,
        role=record.role,
        state=State.RUNNING,
        address=record.address,
        created_at=record.created_at,
        tags={_RAY_DIRECTORY: record.ray_directory, _FIRST_PORT: str(record.first_port)},
    )


def _free_worker_numbers(records: Sequence[InstanceRecord]) -> Iterator[int]:
    used_names = {r.name for r in records}
    return (n for n in itertools.count(1) if f"worker-{n}" not in used_names)


def _free_ports(records: Sequence[InstanceRecord]) -> int:
    """The first of `_PORTS_PER_HEAD` consecutive free ports. The search stays below the range
    from which the system takes ports for outgoing connections, and starts at a random port,
    because another process may be searching at the same time."""
    used = {r.first_port for r in records}
    candidates = range(_LOWEST_PORT, _HIGHEST_PORT, _PORTS_PER_HEAD)
    start = secrets.randbelow(len(candidates))
    for first in itertools.chain(candidates[start:], candidates[:start]):
        block = range(first, first + _PORTS_PER_HEAD)
        if first not in used and all(_is_bindable("", port) for port in block):
            return first
    raise CapacityError(f"no free ports between {_LOWEST_PORT} and {_HIGHEST_PORT} on this machine")


def _is_bindable(address: str, port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True


def _find_missing_ray() -> Finding | None:
    if importlib.util.find_spec("ray") is not None:
        return None
    return Finding(
        "error",
        "Ray is not installed in this Python",
        why="an embedded cluster runs on this machine, with this machine's Ray",
        fix="pip install 'shoal[embedded]'",
    )


def _find_unusable_loopback() -> Finding | None:
    if _is_bindable("127.77.0.1", 0):
        return None
    return Finding(
        "error",
        "the loopback address 127.77.0.1 cannot be used",
        why="each embedded node needs its own address, and this system has only 127.0.0.1",
        fix="for n in 1 2 3 4 5; do sudo ifconfig lo0 alias 127.77.0.$n; done",
    )
