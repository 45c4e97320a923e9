"""A cluster of existing machines that is used step by step from a Python prompt: start Ray with a
directory of code that every worker can import, and restart it with other code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from shoal.bootstrap.mount_files import files_hash
from shoal.cluster.handle import ClusterHandle
from shoal.core.errors import ConfigError, ShoalError
from shoal.ops import install_ray
from shoal.ops.context import Context
from shoal.ops.up import UpOptions, up
from shoal.ray_runtime.ray_env import Installation
from shoal.spec.cluster_spec import ClusterSpec


def spec_with_installation(spec: ClusterSpec, installation: Installation) -> ClusterSpec:
    """The spec, using the Ray of the installation, with no other setup and no controller."""
    node_type = spec.node_types[spec.head_node_type]
    setup = replace(node_type.setup, setup_commands=())
    return replace(
        spec,
        head_setup=replace(spec.head_setup, setup_commands=()),
        node_types={node_type.name: replace(node_type, setup=setup)},
        shoal=replace(spec.shoal, environment=installation.setup_env_file, controller=False),
    )


async def start(
    ctx: Context,
    spec: ClusterSpec,
    installation: Installation,
    worker_directory: str,
    workers_per_node: int,
) -> ClusterSpec:
    """Copy the code to every machine and start Ray there, with `workers_per_node` CPUs each.
    Returns the spec that was brought up."""
    running = spec_with_code(spec, installation, worker_directory, workers_per_node)
    install_ray.common_version(await install_ray.versions(ctx, spec, installation))
    await up(ctx, running)
    return running


async def restart_workers(
    ctx: Context,
    spec: ClusterSpec,
    installation: Installation,
    worker_directory: str,
    workers_per_node: int,
) -> ClusterSpec:
    """Like `start`, on a running cluster. Raises `ShoalError` while tasks are running."""
    running = spec_with_code(spec, installation, worker_directory, workers_per_node)
    await _check_idle(ctx, spec)
    await up(ctx, running, UpOptions(restart="never"))  # copies the files
    await up(ctx, running, UpOptions(restart="only"))
    return running


def spec_with_code(
    spec: ClusterSpec, installation: Installation, worker_directory: str, workers_per_node: int
) -> ClusterSpec:
    """The spec with `workers_per_node` CPUs per machine, whose workers import the modules that are
    in the directory now, and none that were in it before."""
    code = Path(worker_directory).expanduser().absolute()
    if not code.is_dir():
        raise ConfigError(
            f"{worker_directory} is not a directory",
            why="it must contain the modules that the workers import",
            fix="pass a local directory",
        )
    if workers_per_node < 1:
        raise ConfigError(
            f"invalid number of workers per node: {workers_per_node}", fix="use at least 1"
        )
    # Each state of the code has its own directory: a deleted module must not remain importable.
    code_hash = files_hash(replace(spec.files, mounts={"": str(code)}))
    setup_commands = (installation.use_code_command(code_hash),)
    ray_start = f"ray start --num-cpus={workers_per_node}"
    node_type = spec.node_types[spec.head_node_type]
    worker_setup = replace(
        node_type.setup,
        setup_commands=setup_commands,
        start_commands=(f"{ray_start} --address=$RAY_HEAD_IP:6379",),
    )
    head_setup = replace(
        spec.head_setup,
        setup_commands=setup_commands,
        start_commands=(f"{ray_start} --head --port=6379",),
    )
    return replace(
        spec,
        files=replace(spec.files, mounts={installation.code_directory(code_hash): str(code)}),
        head_setup=head_setup,
        node_types={node_type.name: replace(node_type, setup=worker_setup)},
    )


async def _check_idle(ctx: Context, spec: ClusterSpec) -> None:
    cluster = ClusterHandle.of(ctx, spec)
    try:
        nodes = await cluster.list_nodes(await cluster.head())
    except ShoalError as error:
        raise ShoalError(
            error.what,
            why=f"there are no workers to restart ({error.why})",
            fix="cluster.start_ray(...)",
        ) from None
    busy = sorted(node.address for node in nodes.values() if node.status == "running")
    if busy:
        raise ShoalError(
            f"tasks are running on {', '.join(busy)}",
            why="restarting the workers would kill them",
            fix="wait for them, or stop the program that started them",
        )
