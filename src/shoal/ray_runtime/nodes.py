"""What Ray itself says of a cluster's nodes, as data, read by running the probe on the head."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from shoal.core.errors import SetupError
from shoal.remote.runner import Runner, capture, quote

_READ_SECONDS = 30.0


@dataclass(frozen=True)
class RayNode:
    """A live node as Ray's GCS reports it."""

    ray_id: str
    instance_id: str
    address: str
    node_type: str
    status: Literal["running", "idle", "draining", "unspecified"]
    idle_s: float
    total: Mapping[str, float]
    available: Mapping[str, float]
    labels: Mapping[str, str] = field(default_factory=dict)


def probe_command(python: str, address: str) -> str:
    """The command that `ray_nodes` runs. `python` is shell text that names an interpreter."""
    return f"{python} {quote(['-', address])}"


def version_command(python: str) -> str:
    """A command that prints the version of the Ray there, without the seconds that importing it
    takes."""
    program = "import importlib.metadata as m; print(m.version('ray'))"
    return f"{python} {quote(['-c', program])} 2>/dev/null"


async def ray_nodes(head: Runner, command: str, env: Mapping[str, str]) -> dict[str, RayNode]:
    """The cluster's live nodes by instance id, read by running the probe command on the head.
    Raises `SetupError` when Ray does not answer."""
    from importlib import resources  # not for those who only pass nodes around

    source = resources.files("shoal.ray_runtime.scripts").joinpath("list_nodes.py").read_bytes()
    try:
        done, printed = await capture(head, command, env=env, stdin=source, timeout=_READ_SECONDS)
    except TimeoutError:
        raise _silent(f"no reply within {_READ_SECONDS:.0f} s") from None
    answers = [line for line in printed if line.startswith('{"nodes"')]
    if not done.ok or not answers:
        raise _silent("asking its GCS failed", done.tail)
    nodes = [RayNode(**fields) for fields in json.loads(answers[0])["nodes"]]
    return {node.instance_id: node for node in nodes}


def _silent(why: str, output: Sequence[str] = ()) -> SetupError:
    return SetupError(
        "Ray on the head does not answer",
        why=why,
        fix="shoal up restarts what is broken",
        output=output,
    )
