"""A list of machines used from a prompt: Ray installed, started with a directory of one's code on
every worker, stopped, and started with other code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from shoal.bootstrap.mount_files import files_hash
from shoal.cluster.handle import ClusterHandle
from shoal.core.errors import ConfigError, ShoalError
from shoal.ops import install_ray, stop_start
from shoal.ops.context import Context
from shoal.ops.up import UpOptions, up
from shoal.ray_runtime.ray_env import Installation
from shoal.spec.cluster_spec import ClusterSpec


def prepared(spec: ClusterSpec, installation: Installation) -> ClusterSpec:
    """A cluster that uses the Ray of the installation and needs no other setup. It is used step
    by step, so nobody else sees to it meanwhile."""
    kind = spec.node_types[spec.head_node_type]
    return replace(
        spec,
        head_setup=replace(spec.head_setup, setup_commands=()),
        node_types={kind.name: replace(kind, setup=replace(kind.setup, setup_commands=()))},
        shoal=replace(spec.shoal, environment=installation.setup_env_file, controller=False),
    )


async def start(
    ctx: Context,
    spec: ClusterSpec,
    installation: Installation,
    worker_directory: str,
    workers_per_node: int,
) -> ClusterSpec:
    """Send the code to every machine and start Ray, with so many workers on each, which can
    import it. Returns the cluster as it then is."""
    running = with_workers(spec, installation, worker_directory, workers_per_node)
    install_ray.same_everywhere(await install_ray.versions(ctx, spec, installation))
    await up(ctx, running)
    return running


async def restart_workers(
    ctx: Context,
    spec: ClusterSpec,
    installation: Installation,
    worker_directory: str,
    workers_per_node: int,
) -> ClusterSpec:
    """The same on a cluster that runs, whose workers must not have anything to do: they end, and
    new ones take their place."""
    running = with_workers(spec, installation, worker_directory, workers_per_node)
    await _refuse_if_busy(ctx, spec)
    await up(ctx, running, UpOptions(restart="never"))  # the files
    await up(ctx, running, UpOptions(restart="only"))
    return running


async def stop(ctx: Context, spec: ClusterSpec) -> None:
    """End Ray on every machine."""
    await stop_start.stop(ctx, spec)


def with_workers(
    spec: ClusterSpec, installation: Installation, worker_directory: str, workers_per_node: int
) -> ClusterSpec:
    """The cluster with so many workers on each machine, which import what is in the directory now,
    and nothing that was in it before."""
    code = Path(worker_directory).expanduser().absolute()
    if not code.is_dir():
        raise ConfigError(
            f"{worker_directory} is not a directory",
            why="it is to hold the modules that the workers import",
            fix="name a directory on this machine",
        )
    if workers_per_node < 1:
        raise ConfigError(f"{workers_per_node} workers a node are too few", fix="ask for 1 or more")
    state = files_hash(replace(spec.files, mounts={"": str(code)}))
    setup = (installation.use_code_command(state),)
    start = f"ray start --num-cpus={workers_per_node}"
    kind = spec.node_types[spec.head_node_type]
    join = (f"{start} --address=$RAY_HEAD_IP:6379",)
    lead = (f"{start} --head --port=6379",)
    workers = replace(kind.setup, setup_commands=setup, start_commands=join)
    return replace(
        spec,
        files=replace(spec.files, mounts={installation.code_directory(state): str(code)}),
        head_setup=replace(spec.head_setup, setup_commands=setup, start_commands=lead),
        node_types={kind.name: replace(kind, setup=workers)},
    )


async def _refuse_if_busy(ctx: Context, spec: ClusterSpec) -> None:
    cluster = ClusterHandle.of(ctx, spec)
    nodes = await cluster.list_nodes(await cluster.head())
    if not nodes:
        raise ShoalError(
            "Ray does not run", why="there are no workers to restart", fix="cluster.start_ray(...)"
        )
    busy = sorted(node.address for node in nodes.values() if node.status == "running")
    if busy:
        raise ShoalError(
            f"tasks are running on {', '.join(busy)}",
            why="restarting the workers would end them",
            fix="wait for them, or end the program that started them",
        )
