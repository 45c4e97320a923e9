"""What becomes of a cluster whose controller was dismissed and never asked for again."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from shoal.controller import standby
from shoal.controller.controller_config import ControllerConfig
from shoal.controller.paths import HANDOVER, LAST_HANDOVER
from tests.polling import until
from tests.specs import cluster


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A controller's directory, on a machine where what is started only leaves a note of it."""
    directory = tmp_path / "a home" / "controller"
    directory.mkdir(parents=True)
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\necho "$3" > "{tmp_path}/started"\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    return directory


def tell(directory: Path, workers: int) -> str:
    handover = ControllerConfig(cluster(min_workers=workers), "digest", "~/home", "127.77.0.9:6379")
    text = json.dumps(handover.to_json())
    (directory / HANDOVER).write_text(text)
    return text


async def started(directory: Path) -> str:
    note = directory.parents[1] / "started"
    await until(lambda: note.exists() and note.read_text() != "", "something was started")
    return note.read_text().strip()


async def test_a_controller_that_is_had_again_knows_what_it_knew(directory: Path) -> None:
    told = tell(directory, workers=3)
    standby.remember(directory)
    assert not (directory / HANDOVER).exists()
    standby.give_back(directory)
    assert (directory / HANDOVER).read_text() == told
    assert await started(directory) == "supervise"


def test_a_deputy_gives_the_cluster_back_when_nobody_has_come_for_it(directory: Path) -> None:
    told = tell(directory, workers=3)
    standby.remember(directory)
    standby.run(directory, 0.1)
    assert (directory / HANDOVER).read_text() == told


def test_a_cluster_that_was_handed_over_meanwhile_is_not_given_back(directory: Path) -> None:
    tell(directory, workers=3)
    standby.remember(directory)
    new = tell(directory, workers=5)
    standby.give_back(directory)
    assert (directory / HANDOVER).read_text() == new
    assert (directory / LAST_HANDOVER).exists()


def test_a_cluster_that_was_stopped_for_good_is_not_given_back(directory: Path) -> None:
    tell(directory, workers=3)
    standby.remember(directory)
    standby.forget(directory)
    standby.give_back(directory)
    assert not (directory / HANDOVER).exists()
