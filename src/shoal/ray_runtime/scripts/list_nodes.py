"""Prints the live nodes of a running cluster's GCS as JSON.

This file is piped to the Python that runs Ray on the head, so it must not import Shoal.
`ray_runtime.nodes` reads its output.

    python - HOST:PORT
"""

import json
import socket
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

_CONNECT_SECONDS = 1.0
_CALL_SECONDS = 5.0
# More running tasks than this are not counted: the GCS would have to send each of them.
_MAX_TASKS = 10_000
# Namespaces of actors that Ray itself starts, such as a job's supervisor.
_INTERNAL_NAMESPACES = ("_ray_internal", "SUPERVISOR_ACTOR")
_CHANGED = "Ray's environment has changed"


def read_nodes(client: Any, pb: Any, address: str) -> list[dict[str, Any]]:
    reply = pb.GetClusterResourceStateReply()
    reply.ParseFromString(client.get_cluster_resource_state(timeout_s=10))
    nodes = [n for n in reply.cluster_resource_state.node_states if n.status != pb.DEAD]
    # The GCS takes many seconds to notice that a node is gone; its raylet's port shows it at once.
    ports = {
        info.node_id.hex(): (info.node_manager_address, info.node_manager_port)
        for info in client.get_all_node_info(timeout=10).values()
    }
    with ThreadPoolExecutor(32) as pool:
        counting = pool.submit(count_work, address)
        are_alive = pool.map(is_listening, [ports.get(node.node_id.hex()) for node in nodes])
        tasks, actors = counting.result()
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
            "tasks": None if tasks is None else tasks[node.node_id.hex()],
            "actors": None if actors is None else actors[node.node_id.hex()],
        }
        for node, is_alive in zip(nodes, are_alive, strict=True)
        if is_alive
    ]


def count_work(address: str) -> Any:
    """How many tasks and actors run on each node; None where this Ray does not say. Ray's Python
    client has no such request, so its services are called directly."""
    try:
        from ray._private.grpc_utils import init_grpc_channel

        with init_grpc_channel(address) as channel:
            return count_tasks(channel), count_actors(channel)
    except Exception as error:  # these are not public, and change with Ray's releases
        print(f"could not count tasks and actors: {error}", file=sys.stderr)
        return None, None


def count_tasks(channel: Any) -> Any:
    from ray.core.generated import common_pb2, gcs_service_pb2, gcs_service_pb2_grpc

    request = gcs_service_pb2.GetTaskEventsRequest(limit=_MAX_TASKS)
    request.filters.exclude_driver = True
    request.filters.state_filters.add(state="RUNNING")
    service = gcs_service_pb2_grpc.TaskInfoGcsServiceStub(channel)
    reply = service.GetTaskEvents(request, timeout=_CALL_SECONDS)
    if len(reply.events_by_task) >= _MAX_TASKS:
        return None
    return Counter(
        event.state_updates.node_id.hex()
        for event in reply.events_by_task
        if event.task_info.type == common_pb2.NORMAL_TASK
    )


def count_actors(channel: Any) -> Any:
    from ray.core.generated import gcs_pb2, gcs_service_pb2, gcs_service_pb2_grpc

    request = gcs_service_pb2.GetAllActorInfoRequest()
    request.filters.state = gcs_pb2.ActorTableData.ALIVE
    service = gcs_service_pb2_grpc.ActorInfoGcsServiceStub(channel)
    reply = service.GetAllActorInfo(request, timeout=_CALL_SECONDS)
    return Counter(
        actor.address.node_id.hex()
        for actor in reply.actor_table_data
        if not actor.ray_namespace.startswith(_INTERNAL_NAMESPACES)
    )


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
    print(json.dumps({"nodes": read_nodes(client, pb, address)}))


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
