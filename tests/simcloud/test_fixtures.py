"""Where a cloud cannot be had, its tests say so; where it must be had, they fail."""

from __future__ import annotations

import os

import pytest

from tests.simcloud.fixtures import REQUIRED, pytest_runtest_setup

pytestmark = pytest.mark.simcloud


def test_without_root_the_tests_skip_with_a_reason(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.delenv(REQUIRED, raising=False)
    with pytest.raises(pytest.skip.Exception, match="needs root"):
        pytest_runtest_setup(request.node)


def test_without_root_the_tests_fail_where_a_cloud_is_required(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv(REQUIRED, "1")
    with pytest.raises(pytest.fail.Exception, match="needs root"):
        pytest_runtest_setup(request.node)
