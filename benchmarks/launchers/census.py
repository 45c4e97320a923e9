"""Counts the nodes of a Ray cluster as they join it. Runs on the head's machine, from before its
Ray is started, and costs it next to nothing: what is slow, importing Ray, is done first.

    python census.py HOST PORT

Prints "watching" once it is; then, when the GCS listens and whenever the number of live nodes
changes, the moment (of the monotonic clock, which all hosts here share) and the number.
"""

from __future__ import annotations

import socket
import sys
import time

from ray._raylet import GcsClient  # type: ignore[attr-defined,unused-ignore]
from ray.core.generated.gcs_pb2 import GcsNodeInfo

_EVERY_SECONDS = 0.1


def main(host: str, port: str) -> None:
    print("watching", flush=True)
    while not _listens(host, int(port)):
        time.sleep(_EVERY_SECONDS)
    known = 0
    print(time.monotonic(), known, flush=True)
    client = GcsClient(address=f"{host}:{port}")
    while True:
        nodes = client.get_all_node_info(timeout=10).values()
        alive = sum(node.state == GcsNodeInfo.ALIVE for node in nodes)
        if alive != known:
            known = alive
            print(time.monotonic(), alive, flush=True)
        time.sleep(_EVERY_SECONDS)


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])
