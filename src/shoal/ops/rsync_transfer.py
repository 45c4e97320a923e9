"""Copies files between this machine and a cluster with rsync's rules: `dir` is copied into the
target, `dir/` only its contents."""

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

_TEST_SECONDS = 30.0
# $0 is a remote path, in the home directory if it starts with a tilde.
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
    """Copy a local file or directory to the head, or to all nodes."""
    check_run_env(spec, run_env)
    local_path = _existing(source)
    if local_path.is_dir():
        target = _contents_target(source, target)
    cluster = ClusterHandle.of(ctx, spec)
    nodes = await _nodes(cluster, all_nodes)
    await run_all(_put(ctx, cluster, node, local_path, target, run_env) for node in nodes)


async def download(
    ctx: Context, spec: ClusterSpec, source: str, target: str, *, run_env: RunEnv = "auto"
) -> None:
    """Copy a file or directory from the head to this machine."""
    check_run_env(spec, run_env)
    cluster = ClusterHandle.of(ctx, spec)
    (head,) = await _nodes(cluster, False)
    runner = cluster.node_runner(head, run_env)
    is_directory = await _is_directory(runner, source)
    if is_directory:
        target = _contents_target(source, target)
    local_path = _local_target(target, is_directory=is_directory or target.endswith("/"))
    await _get(ctx, cluster, head, source, local_path, run_env)


async def upload_mounts(
    ctx: Context, spec: ClusterSpec, *, all_nodes: bool = False, run_env: RunEnv = "auto"
) -> None:
    """Copy the current content of file_mounts to the head, or to all nodes."""
    cluster = ClusterHandle.of(ctx, spec)
    mounts = _mounts(cluster)
    nodes = await _nodes(cluster, all_nodes)

    async def send(node: Instance) -> None:
        for remote_path, local_path in mounts:
            await _put(ctx, cluster, node, Path(local_path), remote_path, run_env)

    await run_all(send(node) for node in nodes)


async def download_mounts(ctx: Context, spec: ClusterSpec, *, run_env: RunEnv = "auto") -> None:
    """Copy the file mounts back from the head."""
    cluster = ClusterHandle.of(ctx, spec)
    mounts = _mounts(cluster)
    (head,) = await _nodes(cluster, False)
    for remote_path, local_path in mounts:
        await _get(ctx, cluster, head, remote_path, Path(local_path), run_env)


def _existing(source: str) -> Path:
    local_path = Path(source).expanduser()
    if not local_path.exists():
        raise ConfigError(f"{source} does not exist", fix="correct the path")
    return local_path


def _local_target(target: str, *, is_directory: bool) -> Path:
    """The local path to copy to; a directory is created."""
    local_path = Path(target).expanduser()
    if is_directory:
        local_path.mkdir(parents=True, exist_ok=True)
    return local_path


def _mounts(cluster: ClusterHandle) -> list[tuple[str, str]]:
    if not cluster.files.mounts:
        raise ConfigError(
            f"the file of {cluster.spec.cluster_name} has no file_mounts",
            why="without SOURCE and TARGET, the file mounts are copied",
            fix="pass SOURCE and TARGET",
        )
    return list(cluster.files.mounts.items())


async def _nodes(cluster: ClusterHandle, all_nodes: bool) -> Sequence[Instance]:
    if cluster.capabilities.shares_this_machine:
        raise ConfigError(
            "there is nothing to copy",
            why="the nodes of an embedded cluster use this machine's own files",
            fix="use the local paths",
        )
    head = await cluster.head()
    if not all_nodes:
        return [head]
    nodes = await cluster.instances()
    unreachable = [node.name for node in nodes if node.state is State.UNREACHABLE]
    if unreachable:
        raise NotFoundError(
            f"unreachable nodes: {', '.join(unreachable)}",
            fix="omit --all-nodes to copy to the head only",
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
    return (await runner.run(quote(["sh", "-c", _IS_DIRECTORY, path]), timeout=_TEST_SECONDS)).ok


def _contents_target(source: str, target: str) -> str:
    """Where the contents of directory `source` go: `target/source`, or with a trailing slash,
    `target`."""
    name = posixpath.basename(source)
    return target if name in ("", ".", "..", "~") else posixpath.join(target, name)
