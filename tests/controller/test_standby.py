"""How a paused controller is resumed."""

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
    """A controller's directory. Commands that it starts only write their name to a file."""
    directory = tmp_path / "a home" / "controller"
    directory.mkdir(parents=True)
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\necho "$3" > "{tmp_path}/started"\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    return directory


def write_config(directory: Path, workers: int) -> str:
    config = ControllerConfig(cluster(min_workers=workers), "digest", "~/home", "127.77.0.9:6379")
    text = json.dumps(config.to_json())
    (directory / CONFIG).write_text(text)
    return text


async def started(directory: Path) -> str:
    file = directory.parents[1] / "started"
    await until(lambda: file.exists() and file.read_text() != "", "something was started")
    return file.read_text().strip()


async def test_a_resumed_controller_has_the_config_it_had(directory: Path) -> None:
    written = write_config(directory, workers=3)
    standby.pause_config(directory)
    assert not (directory / CONFIG).exists()
    standby.resume_controller(directory)
    assert (directory / CONFIG).read_text() == written
    assert await started(directory) == "supervise"


def test_a_standby_resumes_the_controller_when_its_time_is_over(directory: Path) -> None:
    written = write_config(directory, workers=3)
    standby.pause_config(directory)
    standby.run(directory, 0.1)
    assert (directory / CONFIG).read_text() == written


def test_a_config_that_was_deployed_meanwhile_is_kept(directory: Path) -> None:
    write_config(directory, workers=3)
    standby.pause_config(directory)
    new = write_config(directory, workers=5)
    standby.resume_controller(directory)
    assert (directory / CONFIG).read_text() == new
    assert (directory / PAUSED_CONFIG).exists()


def test_a_controller_that_was_stopped_for_good_is_not_resumed(directory: Path) -> None:
    write_config(directory, workers=3)
    standby.pause_config(directory)
    standby.forget_config(directory)
    standby.resume_controller(directory)
    assert not (directory / CONFIG).exists()
