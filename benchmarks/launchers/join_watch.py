"""Counts the nodes of a cluster as they join it. Runs on the head's machine, from before anything
is started there, and costs it next to nothing: what is slow, importing Ray, is done first.

    python census.py HOST PORT ray|stand-ins

Prints "watching" once it is; then, when the GCS listens and whenever the number of live nodes
changes, the moment (of the monotonic clock, which all hosts here share) and the number. Nodes that
stand in for Ray's say that they have joined at the port above.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Iterator

_EVERY_SECONDS = 0.1


def main(host: str, port: str, kind: str) -> None:
    count = (_ray_nodes if kind == "ray" else _stand_ins)(host, int(port))
    print("watching", flush=True)
    while not _listens(host, int(port)):
        time.sleep(_EVERY_SECONDS)
    print(time.monotonic(), 0, flush=True)
    for alive in count():
        print(time.monotonic(), alive, flush=True)


def _ray_nodes(host: str, port: int) -> Callable[[], Iterator[int]]:
    from ray._raylet import GcsClient  # type: ignore[attr-defined,unused-ignore]
    from ray.core.generated.gcs_pb2 import GcsNodeInfo

    def count() -> Iterator[int]:
        client = GcsClient(address=f"{host}:{port}")
        known = 0
        while True:
            nodes = client.get_all_node_info(timeout=10).values()
            alive = sum(node.state == GcsNodeInfo.ALIVE for node in nodes)
            if alive != known:
                known = alive
                yield alive
            time.sleep(_EVERY_SECONDS)

    return count


def _stand_ins(_host: str, port: int) -> Callable[[], Iterator[int]]:
    roll = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    roll.bind(("", port + 1))

    def count() -> Iterator[int]:
        present = 0
        while roll.recv(100):
            present += 1
            yield present

    return count


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])
