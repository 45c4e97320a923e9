"""Gives tests of many examples the time for them."""

import pytest

from tests.scaling.clusters import EXAMPLES

_MIN_TIMEOUT_S = 300.0
_SECONDS_PER_EXAMPLE = 2.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the timeout of a test grow with the number of examples."""
    if EXAMPLES:
        timeout = max(_MIN_TIMEOUT_S, EXAMPLES * _SECONDS_PER_EXAMPLE)
        for item in items:
            if "tests/scaling/" in item.nodeid:
                item.add_marker(pytest.mark.timeout(timeout))
