"""What every test may use."""

import os
import signal

import pytest
from hypothesis import settings

# How long one example takes says more about the machine than about the code. Every run tries the
# same examples, so that whether it passes says something of the change; `--hypothesis-profile
# explore` tries new ones.
settings.register_profile("shoal", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile("shoal")

# A shell that starts the tests in the background lets them, and all that they start, ignore
# Ctrl-C, and `nohup` the end of a terminal, which some of them are about.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

pytest_plugins = ["tests.simcloud.fixtures"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what takes long, unless it is asked for."""
    if not os.environ.get("SHOAL_LONG_TESTS"):
        skip = pytest.mark.skip(reason="takes long; set SHOAL_LONG_TESTS=1")
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(skip)
