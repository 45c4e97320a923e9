"""Counts the nodes of a cluster as they join. Runs on the head's host, started before Ray; it
imports Ray first, so that it uses next to no CPU later.

    python count_nodes.py HOST PORT ray|stand-ins

Prints "watching" when it is ready. Then, when the GCS listens and whenever the number of live nodes
changes, it prints the time (of the monotonic clock, which all hosts here share) and the number.
Stand-ins for Ray report to the next port that they have joined.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Iterator

_POLL_SECONDS = 0.1


def main(host: str, port: str, kind: str) -> None:
    count = (_ray_nodes if kind == "ray" else _stand_ins)(host, int(port))
    print("watching", flush=True)
    while not _is_listening(host, int(port)):
        time.sleep(_POLL_SECONDS)
    print(time.monotonic(), 0, flush=True)
    for alive in count():
        print(time.monotonic(), alive, flush=True)


def _ray_nodes(host: str, port: int) -> Callable[[], Iterator[int]]:
    from ray._raylet import GcsClient  # type: ignore[attr-defined,unused-ignore]
    from ray.core.generated.gcs_pb2 import GcsNodeInfo

    def count() -> Iterator[int]:
        client = GcsClient(address=f"{host}:{port}")
        last_count = 0
        while True:
            nodes = client.get_all_node_info(timeout=10).values()
            alive = sum(node.state == GcsNodeInfo.ALIVE for node in nodes)
            if alive != last_count:
                last_count = alive
                yield alive
            time.sleep(_POLL_SECONDS)

    return count


def _stand_ins(_host: str, port: int) -> Callable[[], Iterator[int]]:
    join_socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    join_socket.bind(("", port + 1))

    def count() -> Iterator[int]:
        joined = 0
        while join_socket.recv(100):
            joined += 1
            yield joined

    return count


def _is_listening(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])
