"""How user sessions on a cluster's nodes are found."""

from __future__ import annotations

import asyncio
from pathlib import Path

from shoal.controller.node_manager import is_in_use_here, is_in_use_on_any
from shoal.ray_runtime.ray_start import IN_USE_VARIABLE
from shoal.remote.local_runner import LocalRunner

GCS = "192.0.2.1:6379"


async def test_a_process_on_any_machine_counts_and_an_unreachable_machine_does_not(
    tmp_path: Path,
) -> None:
    reachable, unreachable = LocalRunner(tmp_path, {}), LocalRunner(tmp_path / "gone", {})
    assert not await is_in_use_here(GCS)
    assert not await is_in_use_on_any([reachable, unreachable], GCS)
    session = await asyncio.create_subprocess_exec("sleep", "60", env={IN_USE_VARIABLE: GCS})
    try:
        assert await is_in_use_here(GCS)
        assert await is_in_use_on_any([unreachable, reachable], GCS)
        other = await is_in_use_on_any([reachable], "192.0.2.2:6379")
        assert not other, "it uses another cluster"
    finally:
        session.kill()
        await session.wait()
