"""Questions at a terminal: what Enter, Ctrl-C and Ctrl-D mean, and colours."""

from __future__ import annotations

import asyncio

import pytest

from shoal.core.clock import SystemClock
from shoal.providers.embedded.embedded_provider import EmbeddedProvider
from shoal.providers.model import LaunchRequest
from tests.cli.shoal_command import Home
from tests.cli.terminal import CTRL_C, CTRL_D, terminal
from tests.specs import cluster

pytestmark = pytest.mark.processes

QUESTION = "Terminate all nodes of cluster demo? [y/N]: "


@pytest.fixture
def home(module_home: Home) -> Home:
    return module_home


@pytest.fixture
def instance(home: Home) -> str:
    """The id of an instance without Ray, which is the cluster `demo`; launched unless a test before
    has left it."""
    provider = EmbeddedProvider(home.path / "e", SystemClock())
    request = LaunchRequest("head", "head", 1, "token")
    (launched,) = asyncio.run(provider.launch(cluster(name="demo"), [request]))
    return launched.id


@pytest.mark.parametrize(
    ("keys", "code"), [("\r", 1), ("n\r", 1), (CTRL_D, 1), (CTRL_C, 130), ("what\rno\r", 1)]
)
def test_anything_but_yes_changes_nothing_and_says_so(
    home: Home, instance: str, keys: str, code: int
) -> None:
    with terminal(home, "down", "demo") as screen:
        screen.shows(QUESTION)
        screen.type(keys)
        assert screen.exit_code() == code, screen.screen
    assert "nothing was changed" in screen.screen
    assert "internal error" not in screen.screen
    assert home.instance_ids() == {instance}


def test_yes_is_yes(home: Home, instance: str) -> None:
    with terminal(home, "down", "demo") as screen:
        screen.shows(QUESTION)
        screen.type("y\r")
        assert screen.exit_code() == 0, screen.screen
    assert home.instance_ids() == set()


def test_no_color_is_respected_on_a_terminal(home: Home, instance: str) -> None:
    with terminal(home, "status", "demo") as coloured:
        coloured.exit_code()
    assert "\x1b[" in coloured.screen, "the test is about nothing otherwise"
    with terminal(home, "status", "demo", NO_COLOR="1") as plain:
        plain.exit_code()
    assert "demo" in plain.screen
    assert "\x1b[" not in plain.screen
