"""Copies files between this machine and a cluster, with rsync's rules: a directory without a
slash at its end goes into the target, with one only what is in it does."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from pathlib import Path

from shoal.cluster.handle import ClusterHandle, RunEnv, check_run_env
from shoal.core.concurrency import run_all
from shoal.core.errors import ConfigError, NotFoundError
from shoal.core.events import FilesCopied
from shoal.ops.context import Context
from shoal.providers.model import Instance, State
from shoal.remote.runner import Filters, Runner, quote
from shoal.spec.cluster_spec import ClusterSpec

_ASK_SECONDS = 30.0
# $0 is a path on the machine, below home when it starts with a tilde.
_IS_DIRECTORY = r"""case $0 in "~"|"~/"*) path=$HOME${0#"~"};; *) path=$0;; esac; [ -d "$path" ]"""


async def upload(
    ctx: Context,
    spec: ClusterSpec,
    source: str,
    target: str,
    *,
    all_nodes: bool = False,
    run_env: RunEnv = "auto",
) -> None:
    """Bring a file or directory of this machine to the head, or to all nodes."""
    check_run_env(spec, run_env)
    here = _here(source)
    if here.is_dir():
        target = _into(source, target)
    cluster = ClusterHandle.of(ctx, spec)
    nodes = await _nodes(cluster, all_nodes)
    await run_all(_put(ctx, cluster, node, here, target, run_env) for node in nodes)


async def download(
    ctx: Context, spec: ClusterSpec, source: str, target: str, *, run_env: RunEnv = "auto"
) -> None:
    """Bring a file or directory of the head to this machine."""
    check_run_env(spec, run_env)
    cluster = ClusterHandle.of(ctx, spec)
    (head,) = await _nodes(cluster, False)
    runner = cluster.node_runner(head, run_env)
    is_directory = await _is_directory(runner, source)
    if is_directory:
        target = _into(source, target)
    there = _place(target, is_directory=is_directory or target.endswith("/"))
    await _get(ctx, cluster, head, source, there, run_env)


async def upload_mounts(
    ctx: Context, spec: ClusterSpec, *, all_nodes: bool = False, run_env: RunEnv = "auto"
) -> None:
    """Bring the file mounts to the head, or to all nodes, as they are here now."""
    cluster = ClusterHandle.of(ctx, spec)
    mounts = _mounts(cluster)
    nodes = await _nodes(cluster, all_nodes)

    async def send(node: Instance) -> None:
        for there, here in mounts:
            await _put(ctx, cluster, node, Path(here), there, run_env)

    await run_all(send(node) for node in nodes)


async def download_mounts(ctx: Context, spec: ClusterSpec, *, run_env: RunEnv = "auto") -> None:
    """Bring the file mounts back from the head, as they are there now."""
    cluster = ClusterHandle.of(ctx, spec)
    mounts = _mounts(cluster)
    (head,) = await _nodes(cluster, False)
    for there, here in mounts:
        await _get(ctx, cluster, head, there, Path(here), run_env)


def _here(source: str) -> Path:
    here = Path(source).expanduser()
    if not here.exists():
        raise ConfigError(f"there is no {source} to send", fix="correct the path")
    return here


def _place(target: str, *, is_directory: bool) -> Path:
    """A path of this machine that something is to be brought to."""
    place = Path(target).expanduser()
    if is_directory:
        place.mkdir(parents=True, exist_ok=True)
    return place


def _mounts(cluster: ClusterHandle) -> list[tuple[str, str]]:
    if not cluster.files.mounts:
        raise ConfigError(
            f"the file of {cluster.spec.cluster_name} has no file_mounts",
            why="without SOURCE and TARGET, those are what is copied",
            fix="give a SOURCE and a TARGET",
        )
    return list(cluster.files.mounts.items())


async def _nodes(cluster: ClusterHandle, all_nodes: bool) -> Sequence[Instance]:
    if cluster.capabilities.shares_this_machine:
        raise ConfigError(
            "there is nothing to copy",
            why="the nodes of an embedded cluster see this machine's own files",
            fix="use the paths as they are here",
        )
    head = await cluster.head()
    if not all_nodes:
        return [head]
    nodes = await cluster.instances()
    silent = [node.name for node in nodes if node.state is State.UNREACHABLE]
    if silent:
        raise NotFoundError(
            f"not all nodes can be reached: {', '.join(silent)}",
            fix="without --all-nodes, files go to the head alone",
        )
    return nodes


async def _put(
    ctx: Context, cluster: ClusterHandle, node: Instance, source: Path, target: str, run_env: RunEnv
) -> None:
    await cluster.node_runner(node, run_env).put(source, target, _filters(cluster))
    ctx.emit(FilesCopied(node.name, str(source), target))


async def _get(
    ctx: Context, cluster: ClusterHandle, node: Instance, source: str, target: Path, run_env: RunEnv
) -> None:
    await cluster.node_runner(node, run_env).get(source, target, _filters(cluster))
    ctx.emit(FilesCopied(node.name, source, str(target)))


def _filters(cluster: ClusterHandle) -> Filters:
    return Filters(cluster.spec.files.rsync_exclude, cluster.spec.files.rsync_filter)


async def _is_directory(runner: Runner, path: str) -> bool:
    return (await runner.run(quote(["sh", "-c", _IS_DIRECTORY, path]), timeout=_ASK_SECONDS)).ok


def _into(source: str, target: str) -> str:
    """Where the content of a directory goes: below the target, unless only it was asked for."""
    name = posixpath.basename(source)
    return target if name in ("", ".", "..", "~") else posixpath.join(target, name)
