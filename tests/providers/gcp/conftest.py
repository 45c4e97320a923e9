from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.simcloud.cloud import SimCloud
from tests.simcloud.google_names import lead_to


@pytest.fixture
async def cloud(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SimCloud]:
    """A cloud whose Compute Engine the test's own process reaches under Google's names."""
    async with SimCloud(gce=True) as cloud:
        lead_to(cloud.gce, monkeypatch)
        yield cloud
