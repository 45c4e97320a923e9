"""Whether someone is on one of the cluster's machines."""

from __future__ import annotations

import asyncio
from pathlib import Path

from shoal.controller import user_activity
from shoal.ray_runtime.ray_start import IN_USE_VARIABLE
from shoal.remote.local_runner import LocalRunner

GCS = "192.0.2.1:6379"


async def test_a_shell_on_any_machine_is_someone_and_a_silent_machine_is_nobody(
    tmp_path: Path,
) -> None:
    here, gone = LocalRunner(tmp_path, {}), LocalRunner(tmp_path / "gone", {})
    assert not await user_activity.is_here(GCS)
    assert not await user_activity.is_at_any([here, gone], GCS)
    shell = await asyncio.create_subprocess_exec("sleep", "60", env={IN_USE_VARIABLE: GCS})
    try:
        assert await user_activity.is_here(GCS)
        assert await user_activity.is_at_any([gone, here], GCS)
        assert not await user_activity.is_at_any([here], "192.0.2.2:6379"), (
            "it uses another cluster"
        )
    finally:
        shell.kill()
        await shell.wait()
