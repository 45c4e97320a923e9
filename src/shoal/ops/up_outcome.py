"""What `up` and `start` tell the user at the end: that the cluster is ready and what to do next, or
one error for everything that is missing."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from shoal.bootstrap.pipeline import Failures
from shoal.bootstrap.ray_restart import NotRestartedError
from shoal.bootstrap.steps import RETRY_NODE
from shoal.core.errors import IncompleteError, ShoalError
from shoal.core.events import ClusterReady, Warned
from shoal.ops.context import Context
from shoal.providers.model import Instance
from shoal.ray_runtime.ray_env import source_command
from shoal.ray_runtime.ray_start import RayStart
from shoal.spec.cluster_spec import ClusterSpec


def announce_ready(
    ctx: Context, spec: ClusterSpec, start: RayStart, *, nodes: int, started_at: float
) -> None:
    """Emit that the cluster is ready, with the time since `started_at` and useful next commands."""
    ctx.emit(
        ClusterReady(
            cluster=spec.cluster_name,
            nodes=nodes,
            seconds=ctx.clock.monotonic() - started_at,
            address=start.gcs_address,
            dashboard=start.dashboard,
            next_steps=_next_steps(spec),
        )
    )


def _next_steps(spec: ClusterSpec) -> tuple[tuple[str, str], ...]:
    name = shlex.quote(spec.cluster_name)
    driver = (
        f"{source_command(spec.shoal.environment)}; python -i -c 'import ray; ray.init(\"auto\")'"
    )
    return (
        *([("driver on the head", driver)] if spec.shoal.environment else []),
        ("run a program", f"shoal exec {name} 'python script.py'"),
        ("show its status", f"shoal status {name}"),
        ("open a shell", f"shoal attach {name}"),
        ("open the dashboard", f"shoal dashboard {name}"),
        ("terminate it", f"shoal down {name}"),
    )


def outdated_warning(outdated: Sequence[Instance]) -> Warned:
    """The warning about instances that are kept although their settings changed."""
    names = ", ".join(i.name for i in outdated)
    return Warned(
        f"{names} do not match the file",
        why="node_config, ssh_user or volumes changed since they were launched, which needs new "
        "instances",
        fix="replace them: shoal up CLUSTER",
    )


def incomplete(failures: Failures, total: int) -> ShoalError:
    """One error for all failed nodes. It explains the first, since one cause often fails many
    nodes, and names the others."""
    if len(failures) == 1 and total == 1:
        return next(iter(failures.values()))
    causes = {n: e for n, e in failures.items() if not isinstance(e, NotRestartedError)}
    name, first = next(iter(causes.items()))
    missing = ", ".join(causes)
    if len(causes) < len(failures):
        return IncompleteError(
            f"nothing was restarted: could not prepare {missing}",
            why=f"{name}: {first.what}"
            + (f" ({first.why})" if first.why else "")
            + "; Ray runs on as before",
            fix=first.fix if RETRY_NODE in first.fix else f"{first.fix}\n{RETRY_NODE}".lstrip(),
            output=first.output,
        )
    retry = "retry only these nodes: shoal up CLUSTER\nor terminate everything: shoal down CLUSTER"
    own_fix = "" if first.fix == RETRY_NODE else first.fix  # it would say the same
    return IncompleteError(
        f"{len(failures)} of {total} nodes did not come up: {missing}",
        why=f"{name}: {first.what}" + (f" ({first.why})" if first.why else ""),
        fix=f"{own_fix}\n{retry}" if own_fix else retry,
        output=first.output,
    )
