"""The local directories of an operation."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.ops.context import Context


def test_state_is_kept_apart_from_caches_unless_shoal_home_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("SHOAL_HOME", raising=False)
    ctx = Context(lambda event: None)
    assert ctx.home == tmp_path / "cache" / "shoal"
    assert ctx.home not in ctx.state_directory.parents
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "home"))
    ctx = Context(lambda event: None)
    assert ctx.home == ctx.state_directory == tmp_path / "home"
