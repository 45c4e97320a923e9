"""Runs a function on several real replicas by AdaptDL's variables, as a script that is started by
hand: processes of their own, forked from one that has torch imported."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

_TIMEOUT_S = 120.0

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch", "shoal.train.torch", "shoal.train.collective"])


def run_replicas(
    function: Callable[[], Any], replicas: int, checkpoints: Path, restarts: int = 0
) -> list[Any]:
    """What the function returns on each replica, in the order of ranks."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    running = []
    for rank in range(replicas):
        ours, theirs = _context.Pipe()
        place = {
            "ADAPTDL_CHECKPOINT_PATH": str(checkpoints),
            "ADAPTDL_MASTER_ADDR": "127.0.0.1",
            "ADAPTDL_MASTER_PORT": str(port),
            "ADAPTDL_REPLICA_RANK": str(rank),
            "ADAPTDL_NUM_REPLICAS": str(replicas),
            "ADAPTDL_NUM_RESTARTS": str(restarts),
        }
        process = _context.Process(target=_run, args=(function, place, theirs))
        process.start()
        running.append((process, ours))
    results = []
    try:
        for rank, (_, connection) in enumerate(running):
            assert connection.poll(_TIMEOUT_S), f"replica {rank} does not end"
            succeeded, result = connection.recv()
            assert succeeded, f"replica {rank}: {result}"
            results.append(result)
        for _, connection in running:
            connection.send(None)  # all have their results: none is waited for any more
    finally:
        for process, _ in running:
            process.join(5)
            process.kill()
    return results


def _run(function: Callable[[], Any], place: dict[str, str], connection: Connection) -> None:
    os.environ.update(place)
    try:
        connection.send((True, function()))
    except BaseException as error:
        connection.send((False, f"{type(error).__name__}: {error}"))
    connection.poll(_TIMEOUT_S)
    os._exit(0)
