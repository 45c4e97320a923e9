"""Settings that apply to every test."""

import os
import signal

import pytest
from hypothesis import settings

# How long an example takes depends on the computer. Every run uses the same examples, so that a
# failure is due to the change; `--hypothesis-profile explore` draws new ones.
settings.register_profile("shoal", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile("shoal")

# A shell that starts the tests in the background makes them ignore SIGINT, and `nohup` SIGHUP.
# Some tests are about these signals.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

pytest_plugins = ["tests.simcloud.fixtures"]

_LONG_TEST_SECONDS = 1800


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip long tests unless SHOAL_LONG_TESTS is set, and give them a longer timeout."""
    runs_long_tests = bool(os.environ.get("SHOAL_LONG_TESTS"))
    for item in items:
        if not item.get_closest_marker("long"):
            continue
        item.add_marker(pytest.mark.timeout(_LONG_TEST_SECONDS))
        if not runs_long_tests:
            item.add_marker(pytest.mark.skip(reason="takes long; set SHOAL_LONG_TESTS=1"))
