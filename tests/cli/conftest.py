"""A temporary SHOAL_HOME for the command line, whose clusters are terminated at the end. Its path
is short enough for Ray's sockets."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.shoal_command import Home

_EXIT_SECONDS = 60


@pytest.fixture(scope="module")
def module_home() -> Iterator[Home]:
    with temporary_home() as home:
        yield home


@pytest.fixture
def home() -> Iterator[Home]:
    with temporary_home() as home:
        yield home


@contextlib.contextmanager
def temporary_home(prefix: str = "shoal") -> Iterator[Home]:
    path = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
    home = Home(path)
    try:
        yield home
    finally:
        try:
            if any(path.iterdir()):  # otherwise there was no cluster
                _terminate_clusters(home)
        finally:
            shutil.rmtree(path)


def _terminate_clusters(home: Home) -> None:
    instance_ids = home.instance_ids()
    done = home.shoal("down", "--all", "--yes")
    deadline = time.monotonic() + _EXIT_SECONDS
    while home.leftovers(instance_ids) and time.monotonic() < deadline:
        time.sleep(0.1)  # processes that still write would make rmtree fail
    assert done.returncode == 0, done.stderr
