from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.controller.fake_cluster import FakeCluster, Harness


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    """A controller of a cluster with a head and up to five workers of one CPU."""
    harness = Harness(FakeCluster(), tmp_path)
    yield harness
    await harness.controller.close()
