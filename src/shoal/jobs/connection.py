"""Reaches the job API of a cluster's head from this machine: over the existing connection to the
head, with the cluster's token."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

from shoal.cluster.handle import ClusterHandle
from shoal.core.errors import SetupError, UnreachableError
from shoal.jobs.client import RayJobClient
from shoal.ray_runtime.ray_start import RayStart
from shoal.remote.runner import PortForward, Runner, capture

_LOCALHOST = "127.0.0.1"
_TIMEOUT_SECONDS = 30.0
_OPEN_SECONDS = 60.0


@contextlib.asynccontextmanager
async def job_client(cluster: ClusterHandle) -> AsyncIterator[RayJobClient]:
    """The job API of a cluster. The connection lasts as long as the context."""
    head = await cluster.head()
    runner, start = cluster.runner(head), cluster.ray_start(head, head)
    token = await read_token(runner, start) if cluster.spec.shoal.auth == "token" else ""
    cluster_name = cluster.spec.cluster_name
    name, fix = f"the dashboard of {cluster_name}", f"shoal status {cluster_name}"
    if start.dashboard:  # the head is this machine
        address = f"http://{head.address}:{start.dashboard_port}"
        yield RayJobClient(address, token, name=name, fix=fix)
        return
    async with _forwarded(runner, start.dashboard_port) as port:
        yield RayJobClient(f"http://{_LOCALHOST}:{port}", token, name=name, fix=fix)


@contextlib.asynccontextmanager
async def _forwarded(runner: Runner, remote: int) -> AsyncIterator[int]:
    """A port of this machine that leads to a port of the head. Any port is good enough."""
    with socket.socket() as probe:
        probe.bind((_LOCALHOST, 0))
        port = int(probe.getsockname()[1])
    opened = asyncio.Event()
    forwarding = asyncio.ensure_future(runner.forward([PortForward(port, remote)], opened.set))
    waiting = asyncio.ensure_future(opened.wait())
    try:
        await asyncio.wait(
            {forwarding, waiting}, timeout=_OPEN_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        if forwarding.done():
            forwarding.result()
        if not opened.is_set():
            raise UnreachableError("could not open a connection to the head's dashboard")
        yield port
    finally:
        for task in (waiting, forwarding):
            task.cancel()
        await asyncio.gather(waiting, forwarding, return_exceptions=True)


async def read_token(runner: Runner, start: RayStart) -> str:
    """The cluster's token, from its head."""
    command = start.with_prelude('cat "$RAY_AUTH_TOKEN_PATH"')
    done, printed = await capture(runner, command, env=start.driver_env(), timeout=_TIMEOUT_SECONDS)
    if not done.ok or not printed:
        # Without the output, which could contain part of the token.
        raise SetupError("the head has no cluster token", fix="shoal up CLUSTER", node="head")
    return printed[0].strip()
