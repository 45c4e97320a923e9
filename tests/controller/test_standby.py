"""What becomes of a cluster whose controller was dismissed and never asked for again."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from shoal.controller import standby
from shoal.controller.controller_config import ControllerConfig
from shoal.controller.paths import CONFIG, PAUSED_CONFIG
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
    config = ControllerConfig(cluster(min_workers=workers), "digest", "~/home", "127.77.0.9:6379")
    text = json.dumps(config.to_json())
    (directory / CONFIG).write_text(text)
    return text


async def started(directory: Path) -> str:
    note = directory.parents[1] / "started"
    await until(lambda: note.exists() and note.read_text() != "", "something was started")
    return note.read_text().strip()


async def test_a_controller_that_is_had_again_knows_what_it_knew(directory: Path) -> None:
    told = tell(directory, workers=3)
    standby.pause_config(directory)
    assert not (directory / CONFIG).exists()
    standby.resume_controller(directory)
    assert (directory / CONFIG).read_text() == told
    assert await started(directory) == "supervise"


def test_a_standby_gives_the_cluster_back_when_nobody_has_come_for_it(directory: Path) -> None:
    told = tell(directory, workers=3)
    standby.pause_config(directory)
    standby.run(directory, 0.1)
    assert (directory / CONFIG).read_text() == told


def test_a_cluster_that_was_handed_over_meanwhile_is_not_given_back(directory: Path) -> None:
    tell(directory, workers=3)
    standby.pause_config(directory)
    new = tell(directory, workers=5)
    standby.resume_controller(directory)
    assert (directory / CONFIG).read_text() == new
    assert (directory / PAUSED_CONFIG).exists()


def test_a_cluster_that_was_stopped_for_good_is_not_given_back(directory: Path) -> None:
    tell(directory, workers=3)
    standby.pause_config(directory)
    standby.forget_config(directory)
    standby.resume_controller(directory)
    assert not (directory / CONFIG).exists()
