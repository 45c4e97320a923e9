"""Prints the live nodes of a running cluster's GCS as JSON.

This file is piped to the Python that runs Ray on the head, so it must not import Shoal.
`ray_runtime.nodes` reads its output.

    python - HOST:PORT
"""

import json
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

_CONNECT_SECONDS = 1.0
_CHANGED = "Ray's environment has changed"


def read_nodes(client: Any, pb: Any) -> list[dict[str, Any]]:
    reply = pb.GetClusterResourceStateReply()
    reply.ParseFromString(client.get_cluster_resource_state(timeout_s=10))
    nodes = [n for n in reply.cluster_resource_state.node_states if n.status != pb.DEAD]
    # The GCS takes many seconds to notice that a node is gone; its raylet's port shows it at once.
    ports = {
        info.node_id.hex(): (info.node_manager_address, info.node_manager_port)
        for info in client.get_all_node_info(timeout=10).values()
    }
    with ThreadPoolExecutor(32) as pool:
        are_alive = pool.map(is_listening, [ports.get(node.node_id.hex()) for node in nodes])
    return [
        {
            "ray_id": node.node_id.hex(),
            "instance_id": node.instance_id,
            "address": node.node_ip_address,
            "node_type": node.ray_node_type_name,
            "status": pb.NodeStatus.Name(node.status).lower(),
            "idle_s": node.idle_duration_ms / 1000,
            "total": dict(node.total_resources),
            "available": dict(node.available_resources),
        }
        for node, is_alive in zip(nodes, are_alive, strict=True)
        if is_alive
    ]


def is_listening(address: Any) -> bool:
    if address is None:
        return False
    try:
        socket.create_connection(address, timeout=_CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def main(address: str) -> None:
    host, _, port = address.rpartition(":")
    if not is_listening((host.strip("[]"), int(port))):
        sys.exit(f"nothing listens at {address}")  # Ray's client would wait long for it
    try:
        from ray._raylet import GcsClient  # type: ignore[attr-defined,unused-ignore]
        from ray.core.generated import autoscaler_pb2 as pb
    except ImportError as error:
        sys.exit(f"{_CHANGED}: {sys.executable} cannot import it any more: {error}")
    client = GcsClient(address=address)
    check_version(client)
    print(json.dumps({"nodes": read_nodes(client, pb)}))


def check_version(client: Any) -> None:
    """Exit if another Ray was installed since the cluster started: no program and no worker can
    join it then."""
    import ray

    text = client.internal_kv_get(b"CLUSTER_METADATA", namespace=b"cluster", timeout=10)
    running = json.loads(text)["ray_version"] if text else ray.__version__
    if running != ray.__version__:
        sys.exit(
            f"{_CHANGED}: Ray {running} runs, and {sys.executable} now has Ray {ray.__version__}"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
