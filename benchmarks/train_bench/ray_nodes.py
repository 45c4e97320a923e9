"""A Ray cluster on this machine whose nodes are started, drained and shut down one by one.

Each node has a loopback address, as those of an embedded cluster have. A node that ends
takes all its processes with it, as an instance does.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import sys
import time
from pathlib import Path
from types import TracebackType

import psutil

from benchmarks.train_bench.contained import contained
from shoal.core.errors import TransientError
from shoal.ray_runtime import ray_start
from shoal.ray_runtime.gcs_client import Gcs
from shoal.ray_runtime.nodes import RayNode

HEAD = "head"
_START_S = 120.0
_POLL_S = 0.2
_SHUT_DOWN_S = 0.5
_PORTS = range(20_000, 32_000, ray_start.HEAD_PORTS)


class RayNodes:
    """`directory` is for Ray's files; its path must be short, since sockets are in it.
    What `ray start` prints goes to `logs`. `python_path` is for everything that nodes start."""

    def __init__(self, directory: Path, logs: Path, python_path: str) -> None:
        self._directory = directory
        self._logs = logs
        self._python_path = python_path
        self._network = f"127.79.{os.getpid() % 250 + 1}"
        self._ports = ray_start.HeadPorts(_free_ports(f"{self._network}.1"))
        self._gcs = Gcs(self.address)
        self._processes: dict[str, contextlib.ExitStack] = {}
        self._supervisors: dict[str, psutil.Process] = {}
        self._addresses = 1

    @property
    def head_ip(self) -> str:
        return f"{self._network}.1"

    @property
    def address(self) -> str:
        return f"{self.head_ip}:{self._ports.gcs}"

    def environment(self) -> dict[str, str]:
        """For drivers."""
        auth = ray_start.auth_env("none", "")
        return {"RAY_ADDRESS": self.address, "PYTHONPATH": self._python_path, **auth}

    def __enter__(self) -> RayNodes:
        command, variables = ray_start.shared_host_head_start(
            sys.executable, self.head_ip, self._ports, str(self._directory / HEAD)
        )
        self._start(HEAD, command, variables, cpus=0)
        try:
            self.wait_for({HEAD})
        except BaseException:
            self.kill(HEAD)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for name in reversed(list(self._processes)):
            self.kill(name)

    def start(self, name: str) -> None:
        """Begin to start a node with one CPU."""
        self._addresses += 1
        address = f"{self._network}.{self._addresses}"
        directory = str(self._directory / name)
        command = ray_start.shared_host_worker_start(
            sys.executable, address, self.address, directory
        )
        self._start(name, command, {}, cpus=1)

    def _start(self, name: str, command: list[str], variables: dict[str, str], cpus: int) -> None:
        environment = {
            **self.environment(),
            **ray_start.start_timeout_env(),
            **ray_start.node_identity_env(name, name, {"CPU": cpus}, {}),
            **variables,
        }
        del environment["RAY_ADDRESS"]
        store = f"--object-store-memory={ray_start.DEFAULT_OBJECT_STORE_BYTES}"
        log = self._logs / f"{name}.log"
        process = contextlib.ExitStack()
        pid = process.enter_context(contained([*command, store, "--block"], log, **environment))
        self._processes[name], self._supervisors[name] = process, psutil.Process(pid)

    def alive(self) -> dict[str, RayNode]:
        """The nodes that have joined, by name."""
        try:
            return dict(self._gcs.read().nodes)
        except TransientError:
            return {}

    def wait_for(self, names: set[str]) -> None:
        deadline = time.monotonic() + _START_S
        while not names <= set(self.alive()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not all of {names} have joined in {_START_S:g} s")
            time.sleep(_POLL_S)

    def drain(self, name: str, seconds: float) -> None:
        """Announce that the node ends in so many seconds."""
        if (node := self.alive().get(name)) is not None:
            with contextlib.suppress(TransientError):
                deadline = time.time() + seconds
                self._gcs.drain_by_deadline(node.ray_id, "spot interruption", deadline)

    def shut_down(self, name: str) -> None:
        """End the node as an instance is shut down: by SIGTERM, which lets its raylet leave the
        cluster, and soon by SIGKILL."""
        with contextlib.suppress(psutil.NoSuchProcess):
            processes = self._supervisors[name].children(recursive=True)
            raylets = [process for process in processes if process.name() == "raylet"]
            for raylet in raylets:
                raylet.terminate()
            psutil.wait_procs(raylets, timeout=_SHUT_DOWN_S)
        self.kill(name)

    def kill(self, name: str) -> None:
        """End all processes of the node at once."""
        self._processes.pop(name).close()
        del self._supervisors[name]


def _free_ports(address: str) -> int:
    first = random.SystemRandom().choice(_PORTS)
    for port in range(first, first + ray_start.HEAD_PORTS):
        with socket.socket() as probe:
            try:
                probe.bind((address, port))
            except OSError:
                return _free_ports(address)
    return first
