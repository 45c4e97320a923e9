"""Copies a local script to a cluster's head and runs it there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shoal.cluster.handle import ClusterHandle, RunEnv
from shoal.core.errors import ConfigError
from shoal.core.events import FilesCopied
from shoal.ops import execute
from shoal.ops.context import Context
from shoal.ops.ephemeral_cluster import ephemeral_cluster
from shoal.ops.execute import ExecOptions
from shoal.remote.runner import quote
from shoal.spec.cluster_spec import ClusterSpec


async def submit(
    ctx: Context, spec: ClusterSpec, script: Path, arguments: Sequence[str], options: ExecOptions
) -> int:
    """Copy the script to the head's home directory, run it there with exactly these arguments, and
    return its exit code. An embedded cluster runs it in place."""
    execute.check(ctx, spec, options)
    local_path = _checked(script)
    code, _ = execute.chosen_code(spec, options.code, options.requirements)
    async with ephemeral_cluster(ctx, spec, start=options.start, stop=options.stop):
        if code is not None:
            from shoal.ops.code_session import script_in

            command = f"python {quote([script_in(code, local_path), *arguments])}"
            return await execute.perform(ctx, spec, command, options)
        command = await _copy_to_head(ctx, spec, local_path, arguments, options.run_env)
        return await execute.perform(ctx, spec, command, options)


def _checked(script: Path) -> Path:
    if not script.is_file():
        raise ConfigError(
            f"script {script} not found",
            why="it is a directory" if script.is_dir() else "no such file",
            fix="pass the path of a local Python file",
        )
    return script.absolute()


async def _copy_to_head(
    ctx: Context, spec: ClusterSpec, script: Path, arguments: Sequence[str], run_env: RunEnv
) -> str:
    """Copy the script to the head and return the command that runs it there."""
    cluster = ClusterHandle.of(ctx, spec)
    head = await cluster.head()
    start = cluster.ray_start(head, head)
    python = f"{start.find_python}\n{start.python}"
    if run_env == "host" and spec.head_setup.container is not None:
        python = "python3"  # Ray runs in the container
    if cluster.capabilities.shares_this_machine:
        return f"{python} {quote([str(script), *arguments])}"
    target = f"~/{script.name}"
    await cluster.node_runner(head, run_env).put(script, target)
    ctx.emit(FilesCopied(head.name, str(script), target))
    return f'{python} "$HOME"/{quote([script.name, *arguments])}'
