"""The live nodes of a cluster as Ray's GCS reports them, read by running a script on the head."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from shoal.core.errors import NotFoundError, SetupError
from shoal.remote.runner import Runner, capture, quote
from shoal.remote.scripts import read_script

VERSIONS_PREFIX = "versions: "

_READ_SECONDS = 30.0
# What find_ray_python.sh says where no Ray ran.
_NEVER_RAN = "Ray does not run here"
# How find_ray_python.sh and list_nodes.py report that the environment of a running Ray was removed,
# or has another Ray now.
_CHANGED = "Ray's environment has changed"


@dataclass(frozen=True)
class RayNode:
    """A live node as Ray's GCS reports it. `tasks` and `actors` are how many of the user's run on
    it; None where that was not asked or Ray does not say."""

    ray_id: str
    instance_id: str
    address: str
    node_type: str
    status: Literal["running", "idle", "draining", "unspecified"]
    idle_s: float
    total: Mapping[str, float]
    available: Mapping[str, float]
    labels: Mapping[str, str] = field(default_factory=dict)
    tasks: int | None = None
    actors: int | None = None


class EnvironmentChangedError(SetupError):
    """The environment of a running Ray was removed, or has another Ray now. No program and no
    worker process can join that Ray any more."""


def list_nodes_command(python: str, address: str) -> str:
    """The command that `list_nodes` runs. `python` is shell text that names an interpreter."""
    return f"{python} {quote(['-', address])}"


def ray_version_command(python: str) -> str:
    """A command that prints the version of Ray without importing Ray, which takes seconds."""
    program = "import importlib.metadata as m; print(m.version('ray'))"
    return f"{python} {quote(['-c', program])} 2>/dev/null"


def versions_command(python: str) -> str:
    """A command that prints the versions of Ray and Python after `VERSIONS_PREFIX`."""
    program = "import importlib.metadata as m, platform as p"
    program += f"; print({VERSIONS_PREFIX!r} + m.version('ray'), p.python_version())"
    return f"{python} {quote(['-c', program])}"


async def list_nodes(head: Runner, command: str, env: Mapping[str, str]) -> dict[str, RayNode]:
    """The cluster's live nodes by instance id. `command` is that of `list_nodes_command`. Raises
    `SetupError` if Ray does not answer, `EnvironmentChangedError` if it cannot be asked any more,
    `NotFoundError` if no Ray ever ran there."""
    source = read_script("shoal.ray_runtime.scripts", "list_nodes.py").encode()
    try:
        done, output = await capture(
            head, command, env=env, stdin=source, timeout=_READ_SECONDS, skip_profile=True
        )
    except TimeoutError:
        raise _no_answer(f"no reply within {_READ_SECONDS:.0f} s") from None
    documents = [line for line in output if line.startswith('{"nodes"')]
    if not done.ok or not documents:
        why = done.tail[-1] if done.tail else "the request to its GCS failed"
        if why == _NEVER_RAN:
            raise NotFoundError("Ray does not run on the head", fix="start it: shoal up CLUSTER")
        raise _no_answer(why, done.tail)
    nodes = [RayNode(**fields) for fields in json.loads(documents[0])["nodes"]]
    return {node.instance_id: node for node in nodes}


def _no_answer(why: str, output: Sequence[str] = ()) -> SetupError:
    if why.startswith(_CHANGED):
        return EnvironmentChangedError(
            "Ray on the head runs, but cannot be used",
            why=why,
            fix="restart Ray with what is installed: shoal up CLUSTER --restart-only\n"
            "or install on the head what was there before",
        )
    return SetupError(
        "Ray on the head does not answer",
        why=why,
        fix="restart what is broken: shoal up CLUSTER",
        output=output,
    )
