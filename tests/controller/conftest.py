from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.controller.fake_world import Life, World


@pytest.fixture
async def life(tmp_path: Path) -> AsyncIterator[Life]:
    """A controller of a cluster with a head and up to five workers of one CPU."""
    life = Life(World(), tmp_path)
    yield life
    await life.controller.close()
