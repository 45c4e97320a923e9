"""Runs commands on many nodes in parallel, such as those that stop Ray."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from shoal.bootstrap import claims
from shoal.core.concurrency import run_all
from shoal.core.errors import IncompleteError, SetupError, ShoalError
from shoal.providers.model import Instance
from shoal.providers.protocol import Provider
from shoal.ray_runtime.ray_stop import stop_command
from shoal.remote.container import RUNTIME_FILE, exec_in_containers
from shoal.remote.runner import Runner
from shoal.spec.cluster_spec import ClusterSpec

_log = logging.getLogger(__name__)

_CONNECT_SECONDS = 6.0
_COMMAND_SECONDS = 60.0
# The exit code of a command on a host that may have a container of Shoal's.
_HAS_CONTAINER = 78


async def stop_ray(spec: ClusterSpec, provider: Provider, instances: Sequence[Instance]) -> None:
    """Stop Ray on these instances; the instances stay. Raises `IncompleteError` that names those
    where that failed."""
    end_processes = provider.capabilities.end_processes
    if end_processes is not None:
        await end_processes(instances)
        return
    await run_on_each(
        instances,
        lambda i: provider.runner(spec, i),
        "stop Ray",
        lambda i: [_stop_ray_command(spec, provider, i)],
    )


def _stop_ray_command(spec: ClusterSpec, provider: Provider, instance: Instance) -> str:
    """Stops the node's Ray, in its container or on its host."""
    stop = stop_command(instance.id)
    command = f"{exec_in_containers(spec.cluster_name, ['sh', '-c', stop])} && {stop}"
    claim = provider.capabilities.claim_of(instance)
    return command if claim is None else claims.unless_claimed_by_others(claim.owner, command)


async def run_on_each(
    instances: Sequence[Instance],
    runner: Callable[[Instance], Runner],
    what: str,
    commands: Callable[[Instance], Sequence[str]],
) -> None:
    """Run commands on all of these instances in parallel. Raises `IncompleteError` that names the
    instances where they failed; `what` completes "could not ..."."""
    failures: list[tuple[Instance, Exception]] = []

    async def run(instance: Instance) -> None:
        try:
            await _run(runner(instance), instance, commands(instance))
        except (ShoalError, TimeoutError) as error:
            _log.warning("could not %s on %s: %s", what, instance.name, error)
            failures.append((instance, error))

    await run_all(run(instance) for instance in instances)
    if failures:
        names = ", ".join(f"{i.name} ({i.address})" for i, _ in failures)
        first = failures[0][1]
        raise IncompleteError(
            f"could not {what} on {names}",
            why=str(first) or "no answer in time",
            fix="repeat the command when they are reachable; it finishes the rest",
            output=first.output if isinstance(first, ShoalError) else (),
        )


async def _run(runner: Runner, instance: Instance, commands: Sequence[str]) -> None:
    """Run commands that can be repeated, without dotfiles where possible: only a container runtime
    may need what they set. One that fails runs again the other way."""
    await runner.connect(timeout=_CONNECT_SECONDS)
    for command in commands:
        guarded = f"[ ! -s {RUNTIME_FILE} ] || exit {_HAS_CONTAINER}\n{command}"
        done = await runner.run(guarded, timeout=_COMMAND_SECONDS, skip_profile=True)
        has_container = done.code == _HAS_CONTAINER
        if not done.ok:
            # A dotfile may change the directory.
            at_home = f"builtin cd\n{command}" if has_container else command
            done = await runner.run(at_home, timeout=_COMMAND_SECONDS)
        if not done.ok and has_container:
            _log.info("%s: retrying without dotfiles: %s", instance.name, done.tail[-1:])
            done = await runner.run(command, timeout=_COMMAND_SECONDS, skip_profile=True)
        if not done.ok:
            raise SetupError("a command failed", node=instance.name, output=done.tail)
