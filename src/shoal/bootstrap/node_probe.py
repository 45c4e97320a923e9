"""Reads the state of a node in one round trip: its applied state, its container, and whether its
Ray runs.

Looks at processes, because Ray's own view is too slow for this: the GCS takes many seconds to
notice that a node died, and asking it means importing Ray.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from shoal.bootstrap import applied_state
from shoal.bootstrap.applied_state import AppliedState
from shoal.core.errors import SetupError
from shoal.providers.model import Instance
from shoal.remote.container import CONTAINER_HASH_LABEL
from shoal.remote.runner import Runner, capture
from shoal.remote.scripts import read_script, script_command
from shoal.spec.cluster_spec import ContainerSpec

_log = logging.getLogger(__name__)

_SECONDS = 30.0
# Includes the time until the container runtime of a host that has just booted runs.
_CONTAINER_SECONDS = 60.0
_SCRIPTS = "shoal.bootstrap.scripts"
_LIST_PROCESSES = "list_ray_processes.sh"
# The line for a Ray of any cluster.
_ANY_RAY = "any ray"


@dataclass(frozen=True)
class NodeProbe:
    """The state of a node. `ray_runs` is whether all daemons of its Ray run, `has_ray_daemons`
    whether any does: a head whose GCS has died still has a raylet. `has_any_ray` is whether any Ray
    runs there, of this cluster or not. `container_runs` has no meaning for a node without a
    container."""

    applied_state: AppliedState = field(default_factory=AppliedState)
    ray_runs: bool = False
    has_ray_daemons: bool = False
    has_any_ray: bool = False
    container_runs: bool = False


async def probe(
    runner: Runner,
    instance: Instance,
    container: ContainerSpec | None = None,
    mount_points: Sequence[str] = (),
) -> NodeProbe:
    """Probe a node whose Ray runs in this container, if any, and which has volumes at these mount
    points. Raises `ShoalError` if the node cannot be probed."""
    processes = script_command(_SCRIPTS, _LIST_PROCESSES, instance.id)
    if container is not None:
        processes = script_command(
            _SCRIPTS,
            "probe_container.sh",
            container.runtime,
            container.name,
            CONTAINER_HASH_LABEL,
            read_script(_SCRIPTS, _LIST_PROCESSES),
            instance.id,
        )
    command = f"{applied_state.read_command(mount_points)}; {processes}"
    if container is not None:  # its runtime may need the dotfiles, which may change the directory
        command = f"builtin cd\n{command}"
    try:
        done, (state_line, *lines) = await capture(
            runner,
            command,
            timeout=_SECONDS if container is None else _CONTAINER_SECONDS,
            skip_profile=container is None,
        )
        container_line = lines.pop(0) if container is not None else ""
    except (TimeoutError, ValueError, IndexError):
        raise SetupError("could not read node status", node=instance.name) from None
    state = applied_state.parse(state_line)
    is_running, _, container_digest = container_line.partition(" ")
    if container is not None and container_digest != state.container:
        # What was applied in another container went with it.
        state = AppliedState(volumes=state.volumes)
    required = {"raylet", "gcs_server"} if instance.role == "head" else {"raylet"}
    has_ray_daemons = not {"raylet", "gcs_server"}.isdisjoint(lines)
    result = NodeProbe(
        state,
        ray_runs=done.ok and required <= set(lines),
        has_ray_daemons=has_ray_daemons,
        has_any_ray=has_ray_daemons or _ANY_RAY in lines,
        container_runs=is_running == "true",
    )
    _log.debug("%s: %s", instance.name, result)
    return result


async def mark_stopped(
    runner: Runner, instance: Instance, container: ContainerSpec | None = None
) -> None:
    """Record on a node that its Ray was stopped on purpose."""
    current = await probe(runner, instance, container)
    await applied_state.write(runner, replace(current.applied_state, start=applied_state.STOPPED))
