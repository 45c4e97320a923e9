"""The systems that `train_trace` compares: how each is started, and how its workers come and go."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from benchmarks.train_bench import trace_loop
from benchmarks.train_bench.contained import contained
from benchmarks.train_bench.peer_packages import (
    Unavailable,
    install_ray_train,
    install_torchft,
)
from benchmarks.train_bench.ray_nodes import RayNodes
from benchmarks.train_bench.spot_trace import WORKERS
from shoal.train.job.code_archive import pack
from shoal.train.job.job_spec import AUTO, CODE_FILE, JOB_FILE, JobSpec

LOOP = Path(trace_loop.__file__)
_ROOT = LOOP.parents[2]
_DEADLINE_S = 120.0

# Ray Train looks at its workers and at draining nodes more often than by default (2 s and 5 s),
# since the notice is shorter in the scaled trace. It counts the nodes of the cluster every 20 s,
# which is no setting: the count can include a node that is gone, for which it waits 2 s, not 60.
_RAY_TRAIN = {
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S": "0.5",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "2",
}


class System(Protocol):
    """Nodes that can each run one worker, and a training on them. A node is started `boot_s`
    before it joins in the trace, since its time to boot is not part of the capacity."""

    boot_s: float

    def start(self, node: str) -> None:
        """Begin to start a node."""

    def alive(self) -> set[str]:
        """The nodes that have started."""

    def begin_training(self) -> None:
        """The first nodes have started."""

    def announce_end(self, node: str, seconds: float) -> None:
        """The node ends in so many seconds."""

    def kill(self, node: str) -> None: ...


class OnRay:
    """A training on a Ray cluster, begun by a driver."""

    boot_s = 8.0

    def __init__(
        self, nodes: RayNodes, driver: list[str], environment: dict[str, str], directory: Path
    ) -> None:
        self._nodes = nodes
        self._driver = driver
        self._environment = {**nodes.environment(), "HEAD_IP": nodes.head_ip, **environment}
        self._log = directory / "driver.log"
        self.stack = contextlib.ExitStack()

    def start(self, node: str) -> None:
        self._nodes.start(node)

    def alive(self) -> set[str]:
        return set(self._nodes.alive())

    def begin_training(self) -> None:
        driver = contained(self._driver, self._log, **self._environment)
        self.stack.enter_context(driver)

    def announce_end(self, node: str, seconds: float) -> None:
        self._nodes.drain(node, seconds)

    def kill(self, node: str) -> None:
        self._nodes.shut_down(node)


@contextlib.contextmanager
def shoal(directory: Path) -> Iterator[System]:
    """The job of `shoal train -m 4 --objective size`, as it runs on a head."""
    files = directory / "files"
    code = directory / "code"
    files.mkdir()
    code.mkdir()
    shutil.copy(LOOP, code / "train.py")
    spec = JobSpec(
        f"trace-{os.getpid()}",
        "train.py",
        ("shoal", str(directory)),
        max_workers=WORKERS,
        gpus=0.0,
        directory=str(directory / "jobs"),
        checkpoint_dir=str(directory / "checkpoints"),
        rescale_mode=AUTO,
        created=time.time(),
    )
    (files / JOB_FILE).write_text(spec.to_json())
    (files / CODE_FILE).write_bytes(pack(code))
    command = [sys.executable, "-m", "shoal.train.job", "run", str(files)]
    with _on_ray(command, {}, directory, python_path()) as system:
        try:
            yield system
        finally:
            _remove_sockets(directory)


def _remove_sockets(directory: Path) -> None:
    """Agents that are killed with their node cannot remove their directories."""
    with contextlib.suppress(FileNotFoundError):
        for line in (directory / "agent-sockets").read_text().splitlines():
            if line.startswith("/tmp/shoal-"):
                shutil.rmtree(Path(line).parent, ignore_errors=True)


@contextlib.contextmanager
def ray_train(directory: Path) -> Iterator[System]:
    """Ray Train with elastic workers and just-in-time checkpoints."""
    driver = [sys.executable, str(LOOP), "ray", str(directory)]
    with tempfile.TemporaryDirectory() as packages:
        install_ray_train(packages)
        with _on_ray(driver, _RAY_TRAIN, directory, python_path(packages)) as system:
            yield system


@contextlib.contextmanager
def _on_ray(
    driver: list[str], environment: dict[str, str], directory: Path, path: str
) -> Iterator[System]:
    with contextlib.ExitStack() as stack:
        short = tempfile.TemporaryDirectory(prefix="tt-", dir="/tmp", ignore_cleanup_errors=True)
        ray_directory = Path(stack.enter_context(short))
        stack.callback(_keep_raylet_logs, ray_directory, directory)
        nodes = stack.enter_context(RayNodes(ray_directory, directory, path))
        system = OnRay(nodes, driver, environment, directory)
        stack.enter_context(system.stack)
        yield system


def _keep_raylet_logs(ray_directory: Path, directory: Path) -> None:
    for log in ray_directory.glob("*/session_2*/logs/raylet.*"):
        shutil.copy(log, directory / f"{log.relative_to(ray_directory).parts[0]}-{log.name}")


class Torchft:
    """Replicas of torchft; a node is a process. It has no use for a notice."""

    boot_s = 0.0

    def __init__(self, directory: Path, packages: str, lighthouse: str) -> None:
        self._directory = directory
        self._environment = {"PYTHONPATH": python_path(packages), "LIGHTHOUSE": lighthouse}
        self._processes: dict[str, contextlib.ExitStack] = {}
        self._parts: dict[str, int] = {}

    def start(self, node: str) -> None:
        part = min(set(range(WORKERS)) - set(self._parts.values()))
        process = contextlib.ExitStack()
        replica = [sys.executable, str(LOOP), "torchft", str(self._directory)]
        # The loss of a peer ends some replicas: they are started again, as torchrun would do.
        command = ["sh", "-c", 'while :; do "$@"; sleep 0.1; done', "sh", *replica]
        log = self._directory / f"{node}.log"
        process.enter_context(contained(command, log, PART=str(part), **self._environment))
        self._processes[node], self._parts[node] = process, part

    def alive(self) -> set[str]:
        return set(self._processes)

    def begin_training(self) -> None:
        pass

    def announce_end(self, node: str, seconds: float) -> None:
        pass

    def kill(self, node: str) -> None:
        self._processes.pop(node).close()
        del self._parts[node]

    def close(self) -> None:
        for node in list(self._processes):
            self.kill(node)


@contextlib.contextmanager
def torchft(directory: Path) -> Iterator[System]:
    """torchft with its shortest heartbeat timeout that is of use, 1 s, and a timeout for joining
    that is longer than a step: with a shorter one, a replica that is late once is late again."""
    with tempfile.TemporaryDirectory() as packages, contextlib.ExitStack() as stack:
        install_torchft(packages)
        address = directory / "lighthouse"
        serve = (
            "from torchft.coordination import LighthouseServer as S; import pathlib, sys, time; "
            "s = S(bind='127.0.0.1:0', min_replicas=1, join_timeout_ms=2000, "
            "heartbeat_timeout_ms=1000); pathlib.Path(sys.argv[1]).write_text(s.address()); "
            "time.sleep(99999)"
        )
        command = [sys.executable, "-c", serve, str(address)]
        stack.enter_context(contained(command, PYTHONPATH=packages))
        system = Torchft(directory, packages, _await_text(address))
        stack.callback(system.close)
        yield system


def python_path(packages: str = "") -> str:
    return os.pathsep.join(filter(None, [packages, str(_ROOT), os.environ.get("PYTHONPATH", "")]))


def _await_text(path: Path) -> str:
    deadline = time.monotonic() + _DEADLINE_S
    while not (path.exists() and path.read_text()):
        if time.monotonic() > deadline:
            raise Unavailable(f"{path.name} is not written")
        time.sleep(0.05)
    return path.read_text()
