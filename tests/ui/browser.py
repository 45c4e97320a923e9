"""Chromium without a window, as Debian packages it."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.async_api import Browser

REQUIRED = "SHOAL_REQUIRE_CHROMIUM"
_NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]


def why_not() -> str | None:
    """Why the page cannot be driven on this computer, or None when it can."""
    if find_spec("playwright") is None:
        return "playwright is not installed: pip install playwright"
    if _executable() is None:
        return "there is no Chromium (see tests/system-packages.txt)"
    return None


def require() -> None:
    """Skip the test, or fail it in CI, where the page cannot be driven."""
    reason = why_not()
    if reason and (os.environ.get(REQUIRED) == "1" or os.environ.get("CI")):
        pytest.fail(reason, pytrace=False)
    if reason:
        pytest.skip(reason)


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """A browser with a new profile."""
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        launched = await playwright.chromium.launch(executable_path=_executable(), args=_FLAGS)
        try:
            yield launched
        finally:
            await launched.close()


def _executable() -> str | None:
    return next((path for name in _NAMES if (path := shutil.which(name))), None)
