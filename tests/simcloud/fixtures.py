"""Pytest's way in: the `cloud` and `laptop` fixtures, and the rule for computers without root."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import AsyncIterator

import pytest

from tests.simcloud.cloud import SimCloud
from tests.simcloud.hosts import Host

REQUIRED = "SHOAL_REQUIRE_SIMCLOUD"
_COMMANDS = ("curl", "ip", "nft", "nsenter", "rsync", "setpriv", "ssh", "sshd", "sudo")


def why_not() -> str | None:
    """Return why this computer cannot run a simulated cloud, or None when it can."""
    if sys.platform != "linux":
        return "a simulated cloud needs Linux"
    if os.geteuid() != 0:
        return "a simulated cloud needs root, to make namespaces"
    missing = [name for name in _COMMANDS if shutil.which(name) is None]
    if missing:
        return f"a simulated cloud needs {', '.join(missing)} (see tests/system-packages.txt)"
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("simcloud") is None:
        return
    reason = why_not()
    if reason and os.environ.get(REQUIRED) == "1":
        pytest.fail(f"{REQUIRED}=1, but {reason}", pytrace=False)
    if reason:
        pytest.skip(reason)


@pytest.fixture
async def cloud() -> AsyncIterator[SimCloud]:
    """A cloud of the test's own, gone with everything in it when the test ends."""
    async with SimCloud() as cloud:
        yield cloud


@pytest.fixture
async def laptop(cloud: SimCloud) -> Host:
    """The user's computer in that cloud."""
    return await cloud.laptop()
