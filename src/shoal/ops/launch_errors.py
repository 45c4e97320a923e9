"""The errors of `up` about instances that it could not launch, or can no longer manage."""

from __future__ import annotations

import math
from collections.abc import Sequence

from shoal.core.errors import AuthError, IncompleteError, ShoalError
from shoal.core.events import LaunchAttempted
from shoal.core.money import per_hour


def still_running(error: AuthError, launched: Sequence[LaunchAttempted]) -> AuthError:
    """The error, with the instances that this command has launched and can no longer manage."""
    if not launched:
        return error
    nodes = ", ".join(f"{e.launched} x {e.node_type} ({e.instance_type})" for e in launched)
    prices = [e.launched * e.price for e in launched if e.price is not None]
    cost = f" for {per_hour(math.fsum(prices))}" if prices else ""
    return AuthError(
        error.what,
        why=f"{error.why}; still running{cost}: {nodes}",
        fix=f"{error.fix}\nthen continue: shoal up CLUSTER\n"
        "or terminate what was launched: shoal down CLUSTER",
    )


def could_not_launch(missing: int, ready: int, launch_errors: list[str]) -> ShoalError:
    return IncompleteError(
        f"could not launch {missing} of {ready + missing} nodes; {ready} are ready",
        why="; ".join(dict.fromkeys(launch_errors)) or "the provider launched fewer than requested",
        fix="launch only the missing nodes: shoal up CLUSTER\n"
        "or name alternative instance types in the file: shoal: {fallback: {...}}",
    )
