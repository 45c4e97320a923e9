"""What a program outside of `shoal exec` needs to connect to a cluster."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.cluster.handle import ClusterHandle
from shoal.jobs.connection import read_token
from shoal.ops import dashboard
from shoal.ops.context import Context
from shoal.spec.cluster_spec import ClusterSpec


@dataclass(frozen=True)
class ConnectionEnv:
    """Environment variables, and the command that must run while they are used, if any."""

    variables: dict[str, str]
    tunnel: str = ""


async def connection_env(ctx: Context, spec: ClusterSpec) -> ConnectionEnv:
    """The environment in which `ray.init()`, `ray job submit` and `ray status` on this machine find
    the cluster. The Ray processes of a remote cluster cannot be reached directly: there, it is that
    of Ray's job client, through the forwarded dashboard."""
    cluster = ClusterHandle.of(ctx, spec)
    head = await cluster.head()
    start = cluster.ray_start(head, head)
    if start.dashboard:  # the head is this machine
        return ConnectionEnv(start.driver_env())
    url = f"http://127.0.0.1:{dashboard.DEFAULT_PORT}"
    variables = {"RAY_ADDRESS": url, "RAY_API_SERVER_ADDRESS": url, "RAY_AUTH_MODE": "disabled"}
    if spec.shoal.auth == "token":
        token = await read_token(cluster.runner(head), start)
        variables |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    tunnel = f"shoal dashboard {spec.cluster_name} --port {dashboard.DEFAULT_PORT}"
    return ConnectionEnv(variables, tunnel)
