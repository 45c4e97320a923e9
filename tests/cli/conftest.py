"""A home for the command line, short enough for Ray's sockets, and empty again at the end."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.shoal_command import Home

_LAST_WRITES_S = 60


@pytest.fixture(scope="module")
def module_home() -> Iterator[Home]:
    with home_for_a_while() as home:
        yield home


@pytest.fixture
def home() -> Iterator[Home]:
    with home_for_a_while() as home:
        yield home


@contextlib.contextmanager
def home_for_a_while() -> Iterator[Home]:
    path = Path(tempfile.mkdtemp(prefix="shoal", dir="/tmp"))
    home = Home(path)
    try:
        yield home
    finally:
        machines = home.machines()
        done = home.shoal("down", "--all", "--yes")
        deadline = time.monotonic() + _LAST_WRITES_S
        while home.left_over(machines) and time.monotonic() < deadline:
            time.sleep(0.1)  # what still writes would be in the way
        shutil.rmtree(path)
        assert done.returncode == 0, done.stderr
