"""A home for the command line, short enough for Ray's sockets, and empty again at the end."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.shell import Home


@pytest.fixture(scope="module")
def module_home() -> Iterator[Home]:
    yield from _home()


@pytest.fixture
def home() -> Iterator[Home]:
    yield from _home()


def _home() -> Iterator[Home]:
    path = Path(tempfile.mkdtemp(prefix="shoal", dir="/tmp"))
    home = Home(path)
    try:
        yield home
    finally:
        home.shoal("down", "--all", "--yes")
        shutil.rmtree(path)
