"""What all providers share whose machines are reached by SSH and run the file's own commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from shoal.core.concurrency import run_all
from shoal.core.errors import IncompleteError, SetupError, ShoalError
from shoal.providers.model import Instance
from shoal.ray_runtime import cluster_secrets, ray_env, ray_start, start_commands
from shoal.ray_runtime.ray_start import RayStart
from shoal.ray_runtime.ray_stop import stop_command
from shoal.remote.container import exec_in_containers
from shoal.remote.runner import Runner
from shoal.spec.cluster_spec import ClusterSpec

_DASHBOARD_PORT = 8265
_CONNECT_SECONDS = 6.0
_COMMAND_SECONDS = 60.0

Script = Callable[[Instance], Sequence[str]]


def user_ray_start(
    spec: ClusterSpec,
    instance: Instance,
    head: Instance,
    resources: Mapping[str, float],
    labels: Mapping[str, str],
) -> RayStart:
    """The file's own start commands, fitted to a cluster that Shoal runs."""
    setup = spec.setup_for(instance.node_type, instance.role)
    env = ray_start.identity(instance.id, instance.node_type, resources, labels)
    env.update(ray_start.patience())
    env["RAY_HEAD_IP"] = head.address
    if instance.role == "head":
        env.update(ray_start.head_environment())
    return RayStart(
        commands=tuple(start_commands.fitted(c, instance.address) for c in setup.start_commands),
        env=env,
        prelude=_prelude(spec),
        gcs_address=f"{head.address}:{start_commands.gcs_port(spec.head_setup.start_commands)}",
        python=start_commands.RAY_PYTHON,
        dashboard_port=_DASHBOARD_PORT,
        shares_credentials=True,
    )


def _prelude(spec: ClusterSpec) -> str:
    authentication = ray_start.authentication_prelude(spec.shoal.auth, cluster_secrets.TOKEN_PATH)
    if not spec.shoal.environment:
        return authentication
    return f"{authentication}\n{ray_env.sourced(spec.shoal.environment)}"


def halting(spec: ClusterSpec, instance: Instance) -> str:
    """The command that ends a node's Ray, be it in a container or not."""
    stop = stop_command(instance.id)
    return f"{exec_in_containers(spec.cluster_name, ['sh', '-c', stop])} && {stop}"


async def on_each(
    instances: Sequence[Instance],
    runner: Callable[[Instance], Runner],
    what: str,
    script: Script,
) -> None:
    """Run commands on all of these machines side by side. Raises `IncompleteError` that names
    those where it could not be done; the others are done."""
    failed: list[tuple[Instance, Exception]] = []

    async def one(instance: Instance) -> None:
        try:
            await _run(runner(instance), instance, script(instance))
        except (ShoalError, TimeoutError) as error:
            failed.append((instance, error))

    await run_all(one(instance) for instance in instances)
    if failed:
        names = ", ".join(f"{i.name} ({i.address})" for i, _ in failed)
        first = failed[0][1]
        raise IncompleteError(
            f"could not {what} on {names}",
            why=str(first) or "it did not answer in time",
            fix="the same command again, once they can be reached, finishes the job",
            output=first.output if isinstance(first, ShoalError) else (),
        )


async def _run(runner: Runner, instance: Instance, script: Sequence[str]) -> None:
    await runner.connect(timeout=_CONNECT_SECONDS)
    for command in script:
        done = await runner.run(command, timeout=_COMMAND_SECONDS)
        if not done.ok:
            raise SetupError("a command failed", node=instance.name, output=done.tail)
