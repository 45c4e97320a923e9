"""What `up` says about a cluster whose nodes are all in Ray."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, cast

import pytest

from shoal.cluster.handle import ClusterHandle
from shoal.controller.status_file import ControllerStatus
from shoal.controller.status_reader import StatusReport
from shoal.core.clock import SystemClock
from shoal.core.events import Event, Warned
from shoal.ops.context import Context
from shoal.ops.verification import verify_nodes
from shoal.providers.model import Instance, State

HEAD = Instance("i-1", "c", "head", "head", "head", State.RUNNING, "127.0.0.1", 1.0)


@pytest.mark.parametrize("error", ["", "could not list the instances"])
async def test_a_controller_that_cannot_manage_the_cluster_is_reported(
    tmp_path: Path, error: str
) -> None:
    events: list[Event] = []
    ctx = Context(emit=events.append, home=tmp_path, clock=SystemClock())
    node: dict[str, Any] = {"id": "i-1", "phase": "ready"}
    state = ControllerStatus(time.time(), 1, "c", nodes=(node,), error=error)
    cluster = cast(ClusterHandle, None)  # not asked: the report has all nodes
    await verify_nodes(ctx, cluster, HEAD, [HEAD], StatusReport(state, 0.0))
    assert [e.why for e in events if isinstance(e, Warned)] == ([error] if error else [])
