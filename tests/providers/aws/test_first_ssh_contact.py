"""How long a booting instance is waited for."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from shoal.core.errors import UnreachableError
from shoal.providers.aws import instance_types
from shoal.providers.vm.first_ssh_contact import FirstContactRunner
from shoal.remote.ssh_target import SshTarget
from tests.providers.aws.manual_clock import ManualClock


async def never() -> str:
    await asyncio.Event().wait()
    return ""


@pytest.mark.parametrize("pending", [0.0, 60.0])
async def test_the_ssh_deadline_counts_from_the_end_of_pending(
    pending: float, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed_port = server.getsockname()[1]
    clock = ManualClock()
    start = clock.monotonic()

    def last_pending() -> float | None:
        return min(clock.monotonic(), start + pending) if pending else None

    target = SshTarget(
        host="127.0.0.1",
        user="u",
        port=closed_port,
        known_hosts=tmp_path / "known_hosts",
        host_key_alias="i-1",
        control_dir=tmp_path,
    )
    runner = FirstContactRunner("w", target, clock, never, last_pending=last_pending)
    with pytest.raises(UnreachableError):
        await runner.connect(timeout=5)
    assert clock.monotonic() - start == pytest.approx(pending + 5, abs=1)


@pytest.mark.parametrize(
    ("quick", "slow"), [("m5.large", "p4d.24xlarge"), ("g5.xlarge", "g5.48xlarge")]
)
def test_large_types_may_take_longer_to_boot_and_metal_longest(quick: str, slow: str) -> None:
    assert instance_types.boot_timeout(quick) < instance_types.boot_timeout(slow)
    assert instance_types.boot_timeout(slow) < instance_types.boot_timeout("m5.metal")
