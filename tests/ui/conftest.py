"""Clusters for tests of the page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.core.events import ignore_events
from shoal.ops.context import Context
from tests.ui.heads import Heads, heads


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Heads]:
    """Clusters whose heads are directories."""
    ctx = Context(ignore_events, home=tmp_path / "home")
    with heads(ctx, tmp_path) as clusters:
        yield clusters
