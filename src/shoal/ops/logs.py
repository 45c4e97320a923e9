"""Reads the logs of a node: its setup, Ray's daemons, and on the head the controller."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Literal

from shoal.cluster.handle import ClusterHandle
from shoal.controller import paths
from shoal.core.errors import NotFoundError, UnreachableError
from shoal.ops import node_logs
from shoal.ops.context import Context
from shoal.providers.model import Instance
from shoal.remote.runner import capture, quote
from shoal.remote.scripts import script_command
from shoal.spec.cluster_spec import ClusterSpec

LogKind = Literal["setup", "ray", "controller"]
ALL_KINDS: tuple[LogKind, ...] = ("setup", "ray", "controller")

_READ_SECONDS = 60.0
_LEFT_OUT = "-"


async def read_logs(
    ctx: Context,
    spec: ClusterSpec,
    node: str | None = None,
    *,
    kinds: Collection[LogKind] = ALL_KINDS,
    lines: int = 50,
) -> list[str]:
    """The last lines of each log of the head, or of the node with this name or address, each log
    after a line with its path. Also a node that is gone has a log of its setup."""
    cluster = ClusterHandle.of(ctx, spec)
    head = await cluster.head()
    name, instance = node or head.name, head
    missing: NotFoundError | None = None
    if node is not None:
        try:
            instance = await cluster.instance_named(node)
            name = instance.name
        except NotFoundError as error:
            missing = error
    read: list[str] = []
    if "setup" in kinds:
        read += _setup_log(ctx, spec, name, lines)
    controller = "controller" in kinds and node in (None, head.name)
    log = f"{paths.DIRECTORY}/{paths.LOG}" if controller else _LEFT_OUT
    setup_of = name if "setup" in kinds else _LEFT_OUT
    if missing or instance.id != head.id:
        read += await _read(cluster, head, lines, _LEFT_OUT, log, setup_of)
        log, setup_of = _LEFT_OUT, _LEFT_OUT
    if missing is None:
        session = _session_directory(cluster, instance) if "ray" in kinds else _LEFT_OUT
        read += await _read(cluster, instance, lines, session, log, setup_of)
    elif not read:
        raise missing
    return read


def _setup_log(ctx: Context, spec: ClusterSpec, node: str, lines: int) -> list[str]:
    """What this machine's last `up` printed on a node."""
    path = node_logs.log_file(ctx, spec.cluster_name, node)
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", errors="replace") as file:
        return [f"==> {path} <==", *(line.rstrip("\n") for line in deque(file, lines)), ""]


async def _read(
    cluster: ClusterHandle,
    instance: Instance,
    lines: int,
    session: str,
    file: str,
    setup_of: str,
) -> list[str]:
    arguments = quote([str(lines), session, file, setup_of])
    command = f"{script_command('shoal.ops.scripts', 'print_logs.sh')} {arguments}"
    try:
        _, output = await capture(
            cluster.node_runner(instance), command, timeout=_READ_SECONDS, skip_profile=True
        )
    except TimeoutError:
        why = f"no reply within {_READ_SECONDS:.0f} s"
        raise UnreachableError("the node does not answer", why=why, node=instance.name) from None
    return output


def _session_directory(cluster: ClusterHandle, instance: Instance) -> str:
    """Ray's session directory; empty if only the node knows it."""
    shared_machine = cluster.capabilities.shared_machine
    return f"{shared_machine(instance).ray_directory}/session_latest" if shared_machine else ""
