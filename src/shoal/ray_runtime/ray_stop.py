"""Stops the Ray of one node, and no other Ray on the same host."""

from __future__ import annotations

from shoal.remote.scripts import read_script, script_command

_SCRIPTS = "shoal.ray_runtime.scripts"
_STOP = "stop_ray.sh"


def stop_command(instance_id: str) -> str:
    """A command that returns when no process of this node's Ray is left."""
    return script_command(_SCRIPTS, _STOP, instance_id)


def stop_script() -> str:
    """The script behind `stop_command`, which takes the instance id as its argument."""
    return read_script(_SCRIPTS, _STOP)
