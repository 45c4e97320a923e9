"""Machines in miniature: each a directory, a loopback address and a set of processes here.

Creating one costs nothing and cannot fail for capacity; ending one ends its processes and
removes its directory. What runs on it is not this module's business.
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
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
from shoal.providers.embedded.instance_store import Record, Store, free_addresses, new_id
from shoal.providers.model import Finding, Instance, LaunchRequest, State
from shoal.ray_runtime import ray_start
from shoal.ray_runtime.ray_start import HEAD_PORTS, HeadPorts, RayStart
from shoal.remote.local_runner import LocalRunner
from shoal.remote.runner import quote
from shoal.spec.cluster_spec import ClusterSpec

_FIRST_PORT = 20000
_LAST_PORT = 32000


class EmbeddedProvider:
    """All embedded machines of this user, whichever command made them."""

    def __init__(self, root: Path, clock: Clock) -> None:
        self._store = Store(root)
        self._clock = clock

    async def check(self, spec: ClusterSpec) -> Sequence[Finding]:
        return [f for f in (_ray_is_here(), _loopback_is_usable()) if f is not None]

    async def create(
        self, spec: ClusterSpec, launches: Sequence[LaunchRequest]
    ) -> Sequence[Instance]:
        return await asyncio.to_thread(self._create, spec, launches)

    async def find(
        self, cluster: str | None = None, role: Role | None = None
    ) -> Sequence[Instance]:
        return [
            _instance(r)
            for r in self._store.records()
            if cluster in (None, r.cluster) and role in (None, r.role)
        ]

    async def halt(self, spec: ClusterSpec, instances: Sequence[Instance]) -> None:
        await processes.end({i.id for i in instances}, self._clock)

    async def terminate(self, spec: ClusterSpec, instances: Sequence[Instance]) -> None:
        await processes.end({i.id for i in instances}, self._clock)
        await asyncio.to_thread(self._remove, {i.id for i in instances})

    async def stop(self, spec: ClusterSpec, instances: Sequence[Instance]) -> Sequence[str]:
        await self.halt(spec, instances)
        return []

    async def start(self, spec: ClusterSpec, instances: Sequence[Instance]) -> Sequence[Instance]:
        return instances

    async def release(self, spec: ClusterSpec) -> Sequence[str]:
        return []

    def claim(self, spec: ClusterSpec, instance: Instance, *, force: bool) -> str:
        return ""

    def on_lapse(self, spec: ClusterSpec, instance: Instance) -> str:
        return ""  # it shares this computer with its head

    def runner(self, spec: ClusterSpec, instance: Instance) -> LocalRunner:
        directory = self._store.directory(instance.id)
        # The interpreter that runs Shoal has Ray; commands must find that one first.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        return LocalRunner(
            directory,
            {
                **processes.marked(instance.id),
                "PATH": path,
                "TMPDIR": str(Path(instance.tags["ray-directory"], "tmp")),
            },
        )

    def ray_start(self, spec: ClusterSpec, instance: Instance, head: Instance) -> RayStart:
        ports = HeadPorts(int(head.tags["port-base"]))
        gcs_address = f"{head.address}:{ports.gcs}"
        directory = instance.tags["ray-directory"]
        if instance.role == "head":
            argv, head_env = ray_start.head_on_shared_machine(
                sys.executable, instance.address, ports, directory
            )
        else:
            argv, head_env = (
                ray_start.worker_on_shared_machine(
                    sys.executable, instance.address, gcs_address, directory
                ),
                {},
            )
        node_type = spec.node_types[instance.node_type]
        resources = {
            "object_store_memory": ray_start.DEFAULT_OBJECT_STORE_BYTES,
            **node_type.resources,
        }
        return RayStart(
            commands=(quote(argv),),
            env={
                **ray_start.identity(instance.id, instance.node_type, resources, node_type.labels),
                **ray_start.patience(),
                **ray_start.authentication(spec.shoal.auth, str(self._store.token_path(head.id))),
                **head_env,
            },
            gcs_address=gcs_address,
            python=quote([sys.executable]),
            dashboard_port=ports.dashboard,
            dashboard=f"http://{head.address}:{ports.dashboard}",
        )

    def _create(self, spec: ClusterSpec, launches: Sequence[LaunchRequest]) -> list[Instance]:
        with self._store.lock():
            self._store.sweep()
            records = self._store.records()
            mine = [r for r in records if r.cluster == spec.cluster_name]
            addresses = free_addresses(records, spec.cluster_name)
            numbers = _free_worker_numbers(mine)
            made = []
            for launch in launches:
                known = [r for r in mine if r.token == launch.token]
                made += known
                # Of a cluster that has used up its addresses there are as many as there can be.
                for address in itertools.islice(addresses, launch.count - len(known)):
                    id = new_id()
                    record = Record(
                        id=id,
                        cluster=spec.cluster_name,
                        name="head" if launch.role == "head" else f"worker-{next(numbers)}",
                        node_type=launch.node_type,
                        role=launch.role,
                        address=address,
                        created_at=self._clock.now(),
                        token=launch.token,
                        ray_directory=self._store.ray_directory(id),
                        port_base=_free_ports(records) if launch.role == "head" else 0,
                    )
                    self._store.add(record)
                    made.append(record)
        if launches and not made:
            raise CapacityError(
                f"cluster {spec.cluster_name} cannot have more machines here",
                why="each has a loopback address of its own, and all of the cluster's are taken",
                fix="lower max_workers, or give the nodes more CPUs each",
            )
        return [_instance(r) for r in made]

    def _remove(self, ids: set[str]) -> None:
        with self._store.lock():
            for record in self._store.records():
                if record.id in ids:
                    self._store.remove(record)


def _instance(record: Record) -> Instance:
    return Instance(
        id=record.id,
        cluster=record.cluster,
        name=record.name,
        node_type=record.node_type,
        role=record.role,
        state=State.RUNNING,
        address=record.address,
        created_at=record.created_at,
        tags={"ray-directory": record.ray_directory, "port-base": str(record.port_base)},
    )


def _free_worker_numbers(records: Sequence[Record]) -> Iterator[int]:
    taken = {r.name for r in records}
    return (n for n in itertools.count(1) if f"worker-{n}" not in taken)


def _free_ports(records: Sequence[Record]) -> int:
    """The first of as many ports in a row as a head needs, none of them in use. They are looked
    for below the range from which the system takes ports for outgoing connections, and from a
    random one on, since others on this machine may be looking at the same moment."""
    taken = {r.port_base for r in records}
    bases = range(_FIRST_PORT, _LAST_PORT, HEAD_PORTS)
    some = secrets.randbelow(len(bases))
    for base in itertools.chain(bases[some:], bases[:some]):
        if base not in taken and all(
            _bindable("", port) for port in range(base, base + HEAD_PORTS)
        ):
            return base
    raise CapacityError(f"no free ports between {_FIRST_PORT} and {_LAST_PORT} on this machine")


def _bindable(address: str, port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True


def _ray_is_here() -> Finding | None:
    if importlib.util.find_spec("ray") is not None:
        return None
    return Finding(
        "error",
        "Ray is not installed in this Python",
        why="an embedded cluster runs on this machine, with this machine's Ray",
        fix="pip install 'shoal[embedded]'",
    )


def _loopback_is_usable() -> Finding | None:
    if _bindable("127.77.0.1", 0):
        return None
    return Finding(
        "error",
        "the loopback address 127.77.0.1 cannot be used",
        why="each embedded node has its own address, and this system has only 127.0.0.1",
        fix="for n in 1 2 3 4 5; do sudo ifconfig lo0 alias 127.77.0.$n; done",
    )
