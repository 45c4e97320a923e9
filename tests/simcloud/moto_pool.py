"""A moto for every cloud, without waiting for moto: one warm process forks them all.

Importing moto and building its first application takes seconds of processor time, a fork takes
milliseconds. The warm process belongs to this one, and ends when its standard input does.
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
_nursery: subprocess.Popen[str] | None = None


def new_backend(network: str) -> int:
    """Start a moto that listens on `PORT` of the loopback in a network; return its process id."""
    with _lock:
        nursery = _warm_nursery()
        assert nursery.stdin is not None and nursery.stdout is not None
        nursery.stdin.write(network + "\n")
        nursery.stdin.flush()
        reply = nursery.stdout.readline()
        if not reply:
            raise RuntimeError(f"moto's process ended with {nursery.wait()}")
        return int(reply)


def _warm_nursery() -> subprocess.Popen[str]:
    global _nursery
    if _nursery is None:
        _nursery = subprocess.Popen(
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
        atexit.register(_end, _nursery)
    return _nursery


def _end(nursery: subprocess.Popen[str]) -> None:
    nursery.kill()
    nursery.wait()
