from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.providers.gcp.gcp_bed import Account, Bed
from tests.simcloud.cloud import SimCloud
from tests.simcloud.google_names import lead_to


@pytest.fixture
async def cloud(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SimCloud]:
    """A cloud whose Compute Engine the test's own process reaches under Google's names."""
    async with SimCloud(gce=True) as cloud:
        lead_to(cloud.gce, monkeypatch)
        yield cloud


@pytest.fixture
async def account(
    cloud: SimCloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Account]:
    """A project, for tests of the provider without a laptop."""
    monkeypatch.setenv("HOME", str(tmp_path))
    endpoint = cloud.ec2.client_options()["endpoint_url"]
    monkeypatch.setenv("SHOAL_CHECKIP_URL", f"{endpoint}/checkip")
    yield Account(cloud, tmp_path)


@pytest.fixture
async def bed() -> AsyncIterator[Bed]:
    """A project with nothing in it, and the file of a head and two workers."""
    async with SimCloud(gce=True) as cloud:
        bed = Bed(cloud, await cloud.laptop())
        await bed.write()
        yield bed
