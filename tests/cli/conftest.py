"""A home for the command line, short enough for Ray's sockets, and empty again at the end."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.shell import Home


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
        home.shoal("down", "--all", "--yes")
        shutil.rmtree(path)
