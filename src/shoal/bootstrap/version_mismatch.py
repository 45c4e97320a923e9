"""Explains why a worker's Ray did not start, if the cause is another version of Ray or Python than
the head's: what Ray itself prints depends on the versions, and often does not say so."""

from __future__ import annotations

import logging

from shoal.bootstrap.node_plan import NodePlan
from shoal.core.concurrency import run_all
from shoal.core.errors import SetupError, ShoalError
from shoal.ray_runtime.nodes import VERSIONS_PREFIX, versions_command
from shoal.remote.runner import capture

_log = logging.getLogger(__name__)

_SECONDS = 20.0


async def explain(error: SetupError, worker: NodePlan, head: NodePlan) -> SetupError:
    """The error of a worker whose start commands failed: with the versions, if they differ from
    the head's, and otherwise unchanged."""
    own, heads = await run_all([_versions(worker), _versions(head)])
    if not own or not heads or own == heads:
        return error
    own_ray, own_python = own.split()
    ray, python = heads.split()
    fixes = []
    if own_python != python:
        fixes.append(f"run Ray with Python {python} on all nodes")
    if own_ray != ray:
        install = f"pip install 'ray[default]=={ray}'"
        fixes.append(f"install the same on all nodes: setup_commands: [{install}]")
    return SetupError(
        "its Ray or Python has another version than the head's",
        why=f"it has {_describe(own)}, the head has {_describe(heads)}",
        fix="\n".join([*fixes, "shoal up CLUSTER"]),
        node=worker.instance.name,
        output=error.output,
    )


async def _versions(plan: NodePlan) -> str:
    """The versions of Ray and Python on a node; empty if they cannot be read."""
    if not plan.start.find_python:
        return ""
    command = plan.start.with_python(versions_command(plan.start.python))
    try:
        _, lines = await capture(plan.node_runner, command, timeout=_SECONDS)
    except (ShoalError, TimeoutError) as error:
        _log.info("could not read the versions on %s: %s", plan.instance.name, error)
        return ""
    versions = [line for line in lines if line.startswith(VERSIONS_PREFIX)]
    return versions[-1].removeprefix(VERSIONS_PREFIX) if versions else ""


def _describe(versions: str) -> str:
    ray, _, python = versions.partition(" ")
    return f"Ray {ray} on Python {python}"
