"""How an instance that has lost its cluster ends: in layers, since a guest that shuts down leaves a
stopped instance whose disks still cost.

1. It deletes itself, with the token of its service account.
2. Without one, it powers off. The controller, `down` and `gc` delete what is left.
3. Optionally, Google deletes it after a time that the file sets, whatever happens.
"""

from __future__ import annotations

import math
from typing import Any

from shoal.core.errors import ConfigError
from shoal.remote.runner import quote
from shoal.remote.scripts import read_script
from shoal.spec.cluster_spec import ClusterSpec
from shoal.spec.durations import seconds

_MIN_SECONDS, _MAX_SECONDS = 30, 120 * 86_400


def delete_command() -> str:
    """The command by which an instance deletes itself, or else powers off."""
    return quote(["sh", "-c", read_script("shoal.providers.gcp.scripts", "delete_self.sh")])


def max_run_seconds(spec: ClusterSpec) -> int:
    """After how many seconds Google deletes each instance; 0 if the file sets no limit."""
    value = spec.provider.settings.get("max_run_duration")
    if not value:
        return 0
    try:
        length = math.ceil(float(value) if isinstance(value, (int, float)) else seconds(str(value)))
    except ValueError:
        length = 0
    if not _MIN_SECONDS <= length <= _MAX_SECONDS:
        raise ConfigError(
            f"max_run_duration is {value}",
            why="it is a duration like 24h; Google accepts 30 seconds to 120 days",
            fix="provider: {max_run_duration: 24h}",
        )
    return length


def scheduling(spec: ClusterSpec) -> dict[str, Any]:
    """What the limit adds to the `scheduling` of instances."""
    length = max_run_seconds(spec)
    if not length:
        return {}
    return {
        "maxRunDuration": {"seconds": str(length)},
        "instanceTerminationAction": "DELETE",
    }
