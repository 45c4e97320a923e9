"""A moto process for every simulated cloud, forked from one server that has imported moto.

Importing moto and building its first application takes seconds of CPU time, a fork takes
milliseconds. The fork server exits when its standard input is closed.
"""

from __future__ import annotations

import atexit
import subprocess
import sys
import threading

from tests.simcloud.host_image import PROJECT, SYSTEM_PATH
from tests.simcloud.sweep import mark

PORT = 5000

_lock = threading.Lock()
_fork_server: subprocess.Popen[str] | None = None


def new_backend(network: str) -> int:
    """Start a moto that listens on `PORT` of the loopback in a network namespace; return its
    process id."""
    with _lock:
        server = _start_fork_server()
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(network + "\n")
        server.stdin.flush()
        reply = server.stdout.readline()
        if not reply:
            raise RuntimeError(f"moto's process ended with {server.wait()}")
        return int(reply)


def _start_fork_server() -> subprocess.Popen[str]:
    global _fork_server
    if _fork_server is None:
        _fork_server = subprocess.Popen(
            [sys.executable, "-m", "tests.simcloud.aws_backend", str(PORT)],
            cwd=PROJECT,
            env={
                "PATH": SYSTEM_PATH,
                "MOTO_IAM_LOAD_MANAGED_POLICIES": "true",
                "MOTO_EC2_LOAD_DEFAULT_AMIS": "false",
                **mark(),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(_stop, _fork_server)
    return _fork_server


def _stop(server: subprocess.Popen[str]) -> None:
    server.kill()
    server.wait()
